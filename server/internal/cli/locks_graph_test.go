package cli_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestGraph shows a task that waits while it holds something, in every format.
func TestGraph(t *testing.T) {
	t.Parallel()
	program(t)
	for name, url := range map[string]string{"redis": testbed.Redis(t).URL(), "etcd": "etcd://" + testbed.Etcd(t).Addr(), "postgres": testbed.Postgres(t).URL(), "consul": "consul://" + testbed.Consul(t).Addr()} {
		t.Run(name, func(t *testing.T) { graph(t, url) })
	}
	run(t, 64, "locks", "graph", "--format", "svg")
	run(t, 64, "locks", "graph", "more")
}

func graph(t *testing.T, url string) {
	on := func(args ...string) string {
		t.Helper()
		out, _ := run(t, 0, append([]string{"locks", "graph", "--backend", url}, args...)...)
		return out
	}
	if out := on("-o", "json"); out != "[]\n" {
		t.Errorf("before anybody waits it shows %s", out)
	}
	b, err := backend.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	board, ok := b.KeyValues("")
	if !ok {
		t.Fatal("it has no board")
	}
	d := deadlock.New(&deadlock.Options{Delay: time.Millisecond})
	ctx, cancel := context.WithCancel(d.Task(t.Context(), `say "hi"`, 0))
	drop, err := deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: "held"}, func(context.Context) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	over := testbed.Later(t, time.Minute, func() error {
		_, err := deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: "awaited"}, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		return err
	})
	var all []struct {
		Task, Awaits string
		Holds        []string
		Since        time.Time
	}
	testbed.Eventually(t, "the wait is published", time.Minute, func() bool {
		return json.Unmarshal([]byte(on("-o", "json")), &all) == nil && len(all) == 1
	})
	if w := all[0]; w.Task != `say "hi"` || w.Awaits != "awaited" || len(w.Holds) != 1 || w.Holds[0] != "held" || time.Since(w.Since) > time.Minute {
		t.Errorf("it shows %+v", w)
	}
	for format, want := range map[string]string{"text": "awaited  held", "dot": `"say \"hi\"" -> "awaited" [label=awaits]`, "mermaid": `n0["task say #quot;hi#quot;"]`} {
		if out := on("--format", format); !strings.Contains(out, want) {
			t.Errorf("%s lacks %s:\n%s", format, want, out)
		}
	}
	cancel()
	_ = over()
	drop()
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if out := on("-o", "json"); out != "[]\n" {
		t.Errorf("after it has ended it shows %s", out)
	}
}
