package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

func (l *journalCommands) sagaExportCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "export [ID…]", Short: "Export transactions as JSON lines with checksums",
		Example: `  interlock saga export > journal.jsonl
  interlock saga export order/42 --to order-42.jsonl`,
		Long: `Writes these transactions, or all of the journal, of every protocol, one record a line,
in the order of ids. Each line has a checksum over itself and all lines before it. To
detect a truncated file, keep its last line elsewhere.`,
		RunE: func(c *cobra.Command, ids []string) error {
			if file == "" {
				return l.export(c.Context(), l.app.exactOutput(), ids)
			}
			ctx, stop := untilStopped(c.Context())
			defer stop()
			f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return fail(exitFailed, "%w", err)
			}
			if err = errors.Join(l.export(ctx, f, ids), f.Close()); err != nil {
				_ = os.Remove(file) // a partial file would look complete
				err = cmp.Or(signalError(ctx), err)
			}
			return err
		},
	}
	c.Flags().StringVar(&file, "to", "", "a `file` that does not exist yet (default: the standard output)")
	return c
}

// export writes transactions, or all without ids.
func (l *journalCommands) export(ctx context.Context, out io.Writer, ids []string) error {
	return l.do(ctx, false, func(ctx context.Context, j *journal.Journal) (err error) {
		if len(ids) == 0 {
			ids, err = allIDs(ctx, j)
		} else {
			err = checkIDs(ctx, j, ids)
		}
		if err != nil {
			return err
		}
		return j.Export(ctx, out, ids...)
	})
}

// checkIDs rejects unknown transactions.
func checkIDs(ctx context.Context, j *journal.Journal, ids []string) error {
	for _, id := range ids {
		log, _, err := j.Open(ctx, id)
		if err != nil {
			return err
		}
		if log == nil {
			return &interlock.Error{Op: "export", Name: id, Kind: interlock.Definite, Err: twopc.ErrNone}
		}
	}
	return nil
}

// allIDs lists all transactions of a journal.
func allIDs(ctx context.Context, j *journal.Journal) (ids []string, err error) {
	for h, err := range coordinator.Heads(ctx, j, "") {
		if err != nil {
			return nil, err
		}
		ids = append(ids, h.Transaction)
	}
	return ids, nil
}

func (l *journalCommands) sagaVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify FILE", Short: "Verify that an export is unchanged", Args: oneArg("file"),
		Example: `  interlock saga verify journal.jsonl
  interlock saga export | interlock saga verify -`,
		Long: `Checks the checksum of every line, and that the last line is present. It cannot detect
a file whose lines were all rewritten: compare its last line with the one that you
kept elsewhere.`,
		RunE: func(_ *cobra.Command, args []string) error {
			in := l.app.in
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fail(exitFailed, "%w", err)
				}
				defer f.Close()
				in = f
			}
			n, err := journal.Verify(in)
			if err != nil {
				return fail(exitFailed, "%s is not as it was written: %w", args[0], err)
			}
			return l.app.print(struct {
				Records int `json:"records"`
			}{n}, line("%d records, as they were written\n", n))
		},
	}
}
