package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// dbosSide runs workflows of two steps with DBOS Transact. Each is started under its own id
// and waited for in the process that runs it.
func dbosSide(tb testing.TB, server *testbed.Server, clients int) compare.Side {
	var done effects
	c, err := dbos.NewContext(context.Background(), dbos.Config{AppName: "bench", SystemDBPool: poolOf(tb, server, sagaConnections),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ok(tb, err)
	step := func(c dbos.Context, id, name string) error {
		_, err := dbos.RunAsStep(c, func(context.Context) (string, error) {
			done.add(id + name)
			return "done", nil
		}, dbos.WithStepName(name))
		return err
	}
	workflow := func(c dbos.Context, _ string) (string, error) {
		id, err := dbos.GetWorkflowID(c)
		if err == nil {
			err = step(c, id, "reserve")
		}
		if err == nil {
			err = step(c, id, "pay")
		}
		return "done", err
	}
	dbos.RegisterWorkflow(c, workflow, dbos.WithWorkflowName("two steps"))
	ok(tb, dbos.Launch(c))
	tb.Cleanup(func() { dbos.Shutdown(c, 5*time.Second) })
	return compare.Clients("DBOS", clients, func(context.Context, int) error {
		h, err := dbos.RunWorkflow(c, workflow, "in", dbos.WithWorkflowID(fmt.Sprintf("workflow/%d", fresh.Add(1))))
		if err == nil {
			_, err = h.GetResult()
		}
		return err
	}, done.ofTwoSteps)
}
