package cli

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/server/internal/doctor"
)

// exitUnknown means "could not be examined" to monitoring. The codes below it are
// the severities: 0 ok, 1 warning, 2 critical.
const exitUnknown = 3

func (a *app) doctorCommand() *cobra.Command {
	var o doctor.Options
	var all bool
	c := &cobra.Command{
		Use: "doctor", Short: "Check what weakens the guarantees of a backend",
		Long: `Reads the server's settings and state, and measures how long requests take and how
long this process was paused. It reports what weakens the guarantees of locks, and
what to change. It also checks that the user has the rights that "interlock lock"
needs (not on ZooKeeper and Consul), and in a database that the tables have the columns
of this version. It only reads: it takes no lock and changes nothing on the server. "ok"
means that it found nothing. It knows what --backend knows, so neither Kafka nor NATS.

With --watch it measures for that long. The TTL should be much longer than the
longest pause. The exit code is for monitoring: 0 if all is ok, 1 with warnings, 2 with
something critical, 3 if the backend could not be examined.`,
		Example: `  interlock doctor --backend redis://localhost
  interlock doctor --backend postgres://localhost/bank --ttl 10s --watch 1m
  interlock doctor -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.TTL < 0 || o.Watch < 0 {
				return usage("--ttl and --watch cannot be negative")
			}
			return a.doctor(c.Context(), o, all)
		},
	}
	c.Flags().DurationVar(&o.TTL, "ttl", 0, "TTL of your locks (default 30s)")
	c.Flags().DurationVar(&o.Watch, "watch", 0, "how long to measure pauses and latency (default: a few requests)")
	c.Flags().BoolVar(&all, "all", false, "also print checks that are ok")
	return c
}

func (a *app) doctor(ctx context.Context, o doctor.Options, all bool) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout+o.Watch)
	defer cancel()
	o.Prefix = a.prefix
	r, err := doctor.Examine(ctx, a.url(), o)
	var url *backend.URLError
	var ttl *backend.TTLError
	switch {
	case errors.As(err, &url), errors.As(err, &ttl):
		return err
	case err != nil:
		return fail(exitUnknown, "%w", a.backendError(target, err))
	}
	a.code = int(max(r.Status-1, 0)) // info is ok for monitoring
	return a.print(r, findings(r, all))
}

// url returns the text of [app.target].
func (a *app) url() string {
	return cmp.Or(a.backend, os.Getenv("INTERLOCK_BACKEND"), "etcd://"+devEndpoint())
}

// findings returns a line for each finding, the worst first, followed by the fixes.
func findings(r doctor.Report, all bool) (t text) {
	for severity := doctor.Critical; severity >= doctor.OK; severity-- {
		for _, f := range r.Findings {
			if f.Severity != severity || severity == doctor.OK && !all {
				continue
			}
			t += line("%-8s %-20s %s\n", severity.String(), f.ID, f.Seen)
			if severity != doctor.OK {
				t += line("%9swhy  %s\n%9sdo   %s\n", "", f.Why, "", f.Do)
			}
		}
	}
	return t + line("%s: %s\n", r.Status.String(), r.Backend)
}
