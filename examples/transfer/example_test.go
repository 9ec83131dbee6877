package main

import (
	"context"
	"os"
)

// Sixty go from the north to the south, twenty come back, and ninety exceed the balance,
// by TCC. TestExamples runs this on its own servers and compares the output.
func Example_tcc() {
	run(context.Background(), []string{"-by", "tcc", "-postgres", os.Getenv("POSTGRES_URL"), "-mariadb", os.Getenv("MARIADB_DSN")}, os.Stdout, os.Stderr)
}

// The same by two-phase commit.
func Example_twoPhaseCommit() {
	run(context.Background(), []string{"-by", "2pc", "-postgres", os.Getenv("POSTGRES_URL"), "-mariadb", os.Getenv("MARIADB_DSN")}, os.Stdout, os.Stderr)
}

const exampleSays = `+60: moved
-20: moved
+90: refused
ann has 60 in the north, bob 40 in the south
`
