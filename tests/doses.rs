mod commands;
mod made;
mod numbers;
