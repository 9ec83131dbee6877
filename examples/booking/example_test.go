package main

import (
	"context"
	"os"
)

// Two rooms and three seats; a crashed booking holds one room for a while. TestExample
// runs this on its own servers and compares the output.
func Example() {
	run(context.Background(), []string{"-postgres", os.Getenv("POSTGRES_URL"), "-mariadb", os.Getenv("MARIADB_DSN")}, os.Stdout, os.Stderr)
}

const exampleSays = `ghost: holds a room, and is gone
ann: CONFIRMED
bob: CANCELLED: branch "hotel": 1 units of "room/2026" are refused: there are too few, or there would be too many
ghost: its time was over, the sweeper has asked, and the room is free
ghost: CANCELLED: branch "hotel" asked, and nothing was decided
eve: CONFIRMED
joe: CANCELLED: branch "hotel": 1 units of "room/2026" are refused: there are too few, or there would be too many
2 of 2 rooms and 2 of 3 seats are sold
`
