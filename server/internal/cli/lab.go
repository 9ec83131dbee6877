package cli

import (
	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/lab/threepc"
)

func (a *app) labCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "lab", Short: "Simulate protocols under faults",
		Example: `  interlock lab commit       two-phase and three-phase commit beside each other`,
	}, a.labCommitCommand())
}

func (a *app) labCommitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "commit", Short: "Compare two-phase and three-phase commit", Args: noArgs,
		Example: `  interlock lab commit
  interlock lab commit -o json`,
		Long: `Simulates both protocols, and two-phase commit with its decision in a consensus
register, and compares messages, blocking and split decisions. It runs them without
faults, with a coordinator crash at every point, and under a partition. The
simulation is deterministic and takes a few seconds.`,
		RunE: func(*cobra.Command, []string) error {
			r := threepc.Compare()
			return a.print(r, lines(r.String()))
		},
	}
}
