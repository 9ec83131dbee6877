package main

import (
	"context"
	"os"
)

// Three orders: one ships, the card of one is refused, and one exceeds the stock.
// TestExample runs this on its own server and compares the output.
func Example() {
	run(context.Background(), []string{"-postgres", os.Getenv("POSTGRES_URL")}, os.Stdout, os.Stderr)
}

const exampleSays = `ann: 2 of lamp reserved
ann: 60 charged
ann: shipped
ann: SUCCEEDED, letter: 2 of lamp are on their way
bob: 1 of lamp reserved
bob: COMPENSATED: charge: http: call branch "order%2Fbob/charge/do": answered 409 Conflict: the bank refuses the card
eve: COMPENSATED: reserve: there are not so many left
`
