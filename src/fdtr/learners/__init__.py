"""The paper's algorithms on plain arrays and numbers: LDTR, FDTR and the five baselines."""
