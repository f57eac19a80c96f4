"""SQL over a study: DuckDB on a connection that sees the study's folder and nothing else."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.errors import InputError
from veridical.study.folder import CELLS, Folder
from veridical.study.tables import COLUMNS

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

EMPTY = (
    "create table scores (task varchar, explainer varchar, metric varchar, seed bigint, id bigint, "
    "value double, direction varchar, flags varchar[])"
)


def connect(
    folder: Folder, addresses: list[str], frames: dict[str, pd.DataFrame]
) -> duckdb.DuckDBPyConnection:
    """A connection with the view `scores` over the files of these cells, and the given tables.

    It reads only below the folder, loads no extension, sees no Python variable, and its configuration cannot
    be changed any more.
    """
    import duckdb

    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "threads": "2",
    }
    connection = duckdb.connect(":memory:", config=config)
    for name, frame in frames.items():
        connection.register("given", frame)
        connection.execute(f"create table {name} as select * from given")
        connection.unregister("given")
    files = [f"{CELLS}/{address}.parquet" for address in addresses]
    if not files:
        connection.execute(EMPTY)
    elif folder.local is None:
        connection.register("given", _table(folder, files))
        connection.execute("create table scores as select * from given")
        connection.unregister("given")
    else:
        columns = ", ".join(COLUMNS)
        quoted = ", ".join(_quoted(folder.local / name) for name in files)
        _shut(connection, folder.local)
        connection.execute(f"create view scores as select {columns} from read_parquet([{quoted}])")
        return connection
    _shut(connection, None)
    return connection


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> pd.DataFrame:
    """Answer a query that only reads; the folder allows writing, and a cell must not be overwritten."""
    statements = connection.extract_statements(query)
    if len(statements) != 1 or not statements[0].type.name.startswith("SELECT"):
        raise InputError("a study is asked with one SELECT (it may begin with WITH); nothing else is run")
    return connection.execute(statements[0]).df()


def _shut(connection: duckdb.DuckDBPyConnection, folder: Path | None) -> None:
    if folder is not None:
        connection.execute(f"set allowed_directories = [{_quoted(folder)}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _table(folder: Folder, files: list[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [pq.read_table(io.BytesIO(folder.read(name)), columns=list(COLUMNS)) for name in files]
    return pa.concat_tables([part.replace_schema_metadata(None) for part in parts])


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
