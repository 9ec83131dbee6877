// Command interlock runs commands under locks, shows locks and guards, and
// starts a lock service for development. It does not make a command safe
// against its own pauses: only a guard in the store that the command writes to
// does. See docs/reference/cli.md, or:
//
//	interlock dev
//	interlock lock nightly -- ./backup.sh
package main

import (
	"os"

	"github.com/interlock-dev/interlock/server/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args)) }
