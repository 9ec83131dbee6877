package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
)

func (a *app) holdCommand() *cobra.Command {
	var f waitFlags
	c := &cobra.Command{
		Use: "hold NAME", Short: "Hold a lock until the standard input ends", Args: oneArg("name"),
		Example: `  interlock locks hold nightly           Ctrl-D gives it up
  interlock locks hold nightly --no-wait < pipe`,
		Long: `It prints one JSON line when the lock is granted. If the lock is lost, it exits with
79 at once, and the reader of the line must stop. To run a command under a lock use
"interlock lock", which stops the command itself.`,
		ValidArgsFunction: a.completeName,
		RunE: func(c *cobra.Command, args []string) error {
			if err := first(f.check(c.Flags()), checkName(args[0]), checkHeld(args[0])); err != nil {
				return err
			}
			return a.hold(c.Context(), args[0], f)
		},
	}
	f.add(c.Flags())
	return c
}

func (a *app) hold(ctx context.Context, name string, f waitFlags) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	g, err := a.acquire(ctx, name, f)
	if err != nil {
		return err
	}
	defer g.close()
	defer g.release()
	if err := a.printJSON(granted{Lock: name, Token: g.Token(), Owner: g.Owner(), TTLMS: f.ttl.Milliseconds()}); err != nil {
		return fail(exitUsage, "the grant cannot be written: %w", err)
	}
	return waitForEnd(ctx, g, a.in)
}

// granted is the line that locks hold prints.
type granted struct {
	Lock  string          `json:"lock"`
	Token interlock.Token `json:"token,string"`
	Owner string          `json:"owner"`
	TTLMS int64           `json:"ttl_ms"`
}

// waitForEnd waits for the end of the input, of the claim, or of ctx. The read cannot be
// interrupted; it ends with the process.
func waitForEnd(ctx context.Context, g *grant, in io.Reader) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, in) // an input that fails has ended too
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return signalError(ctx)
	case <-g.Context().Done():
		return fail(exitLost, "%q is lost: %w", g.Name(), context.Cause(g.Context()))
	}
}
