mod commands;
mod evictions;
mod made;
mod numbers;
