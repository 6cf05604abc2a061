use super::parse::*;
