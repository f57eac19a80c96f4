# Someone with a command line only: a model and a table in files.
veridical doctor model.joblib patients.csv --labels state --train patients.csv --allow-code
veridical evaluate --model model.joblib --data patients.csv --labels state --train patients.csv --allow-code -n 24 -e exact_shapley -e random -m pixel_flipping --table scores.md
veridical run study.yaml --workers 1 --allow-code
