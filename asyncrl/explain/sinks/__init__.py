"""Places where people look at runs already: TensorBoard, Weights & Biases, MLflow. Each gets the
points of a run's curve (`metrics.jsonl`), by a process of its own beside the run."""
