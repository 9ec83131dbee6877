package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/supervise"
)

type lockFlags struct {
	waitFlags
	grace, maxHold         time.Duration
	shell, noStdin         bool
	report, onSuspend      string
	lostCode, conflictCode int
}

func (a *app) lockCommand() *cobra.Command {
	f := &lockFlags{}
	c := &cobra.Command{
		Use: "lock NAME [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command while holding a lock",
		Example: `  interlock lock nightly -- ./backup.sh
  interlock lock nightly --no-wait -- ./backup.sh          75 if another process runs it
  interlock lock nightly --wait 10m --max-hold 1h -- ./backup.sh
  interlock lock deploy --shell -- 'make build && make push'
  interlock lock account/42 -- sh -c 'echo "token $INTERLOCK_TOKEN"'`,
		Long: `Returns the command's exit code; see "interlock help exit-codes" for the others.

If the lock cannot be renewed, the command and all processes that it started get TERM.
After --grace they get KILL, before another client can get the lock.

No lock can stop a machine that pauses as a whole, or a write that is already in
flight: only a guard can, a store that refuses INTERLOCK_TOKEN when it has seen a
higher one.`,
		// RunE checks the arguments instead of cobra, so that the report includes errors.
		Args:              cobra.ArbitraryArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		ValidArgsFunction: a.completeJob(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkReport(f.report); err != nil {
				return err
			}
			j := &job{app: a, flags: f, outer: os.Getenv(envHeld)}
			return j.run(c, args)
		},
	}
	f.add(c)
	completes(c, "on-suspend", "continue", "release", "kill")
	return c
}

func (f *lockFlags) add(c *cobra.Command) {
	flags := c.Flags()
	f.waitFlags.add(flags)
	flags.DurationVar(&f.grace, "grace", 0, "time between TERM and KILL (default: 5s, or a sixth of --ttl if that is shorter)")
	flags.DurationVar(&f.maxHold, "max-hold", 0, "end the command after this time (default: no limit)")
	flags.BoolVar(&f.shell, "shell", false, "COMMAND is a script for /bin/sh, the ARGUMENTs are its $1…")
	flags.BoolVar(&f.noStdin, "no-stdin", false, "the command reads /dev/null")
	flags.StringVar(&f.report, "report", "", "write the result to this `file`, as JSON")
	flags.StringVar(&f.onSuspend, "on-suspend", "continue", "what Ctrl-Z does to the command: continue, release (TERM, then release the lock) or kill")
	flags.IntVar(&f.lostCode, "lost-exit-code", exitLost, "exit `code` when the lock was lost or --max-hold was over")
	flags.IntVar(&f.conflictCode, "conflict-exit-code", exitNotAcquired, "exit `code` when the lock was not acquired")
}

func lockArgs(c *cobra.Command, args []string) error {
	const forms = "write interlock lock NAME -- COMMAND [ARGUMENT…], or interlock locks hold NAME to hold it until the standard input ends"
	switch dash := c.ArgsLenAtDash(); {
	case dash < 0 || dash == len(args):
		return usage("there is no command after --; %s", forms)
	case dash == 0:
		return usage("there is no lock name before --; %s", forms)
	case dash > 1:
		return usage("%d lock names were given before --, one is allowed; %s", dash, forms)
	}
	return nil
}

// job is one run of a command under a lock.
type job struct {
	app     *app
	flags   *lockFlags
	name    string
	command supervise.Command
	limits  supervise.Limits
	outer   string // the outer locks
	report  report
}

var policies = map[string]supervise.Policy{"continue": supervise.ContinueOnSuspend,
	"release": supervise.ReleaseOnSuspend, "kill": supervise.KillOnSuspend}

// prepare makes all checks that need no backend.
func (j *job) prepare(c *cobra.Command, args []string) error {
	f := j.flags
	if err := cmp.Or(j.app.checkGlobals(c), lockArgs(c, args)); err != nil {
		return err
	}
	name, words := args[0], args[1:]
	j.name, j.report.Lock = name, name
	if err := cmp.Or(f.check(c.Flags()), checkName(name), checkHeld(name), j.app.resolveTTL(c.Flags(), &f.ttl)); err != nil {
		return err
	}
	policy, ok := policies[f.onSuspend]
	if !ok {
		return usage("--on-suspend %s is not known; it is continue, release or kill", f.onSuspend)
	}
	var err error
	j.limits, err = supervise.Limits{TTL: f.ttl, Grace: f.grace, MaxHold: f.maxHold, OnSuspend: policy}.Check()
	if err != nil {
		return usage("%w", err)
	}
	if f.shell {
		words = append([]string{shell, "-c", words[0], "sh"}, words[1:]...)
	}
	j.command = supervise.Command{Args: words, NoStdin: f.noStdin}
	j.command.Path, err = lookUp(words[0])
	return err
}

// check rejects flags that are wrong for every backend. It rejects --grace 0, which could mean the
// default or an immediate KILL.
func (f *lockFlags) check(flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("grace") && f.grace <= 0:
		return usage("--grace must be above 0, not %v; 1ms is as good as none", f.grace)
	case f.maxHold < 0:
		return usage("--max-hold %v is in the past; leave it out for no limit", f.maxHold)
	}
	return cmp.Or(f.waitFlags.check(flags), f.checkCodes())
}

func (f *lockFlags) checkCodes() error {
	for _, code := range []int{f.lostCode, f.conflictCode} {
		if code < 0 || code > 255 {
			return usage("%d is not an exit code: they are 0 to 255", code)
		}
	}
	return nil
}

// run acquires the lock, runs the command, releases the lock, and writes the report. A run that
// fails early writes one too, so that the file never holds an earlier run's.
func (j *job) run(c *cobra.Command, args []string) error {
	signals := make(chan os.Signal, 16)
	subscribe(signals, forwarded)
	defer unsubscribe(signals)

	err := j.prepare(c, args)
	if err == nil {
		err = j.underLock(c.Context(), signals)
	}
	if err != nil {
		j.report.refused(err)
	}
	if problem := j.report.write(j.flags.report); problem != nil {
		j.app.say("warning: the report could not be written: %v", problem)
	}
	if codeOf(err) == exitNotAcquired {
		return &exitError{j.flags.conflictCode, err}
	}
	return err
}

func (j *job) underLock(ctx context.Context, signals chan os.Signal) error {
	waiting, stop := untilSignal(ctx, signals)
	begun := time.Now()
	g, err := j.app.acquire(waiting, j.name, j.flags.waitFlags)
	stop()
	if err != nil {
		j.report.WaitedMS = time.Since(begun).Milliseconds()
		return err
	}
	defer g.close()
	defer g.release()
	if s := signalError(waiting); s != nil { // it came during the grant
		return s
	}
	subscribe(signals, watched)
	return j.supervise(g, signals)
}

func (j *job) supervise(g *grant, signals <-chan os.Signal) error {
	j.report.Token, j.report.Owner, j.report.WaitedMS = g.Token(), g.Owner(), g.waited.Milliseconds()
	j.command.Env = held{name: j.name, owner: g.Owner(), backend: g.target.Public(), prefix: j.app.prefix,
		token: g.Token(), ttl: j.flags.ttl, outer: j.outer}.environ(os.Environ())
	begun := time.Now()
	result, err := supervise.Run(g, j.command, supervise.Options{Limits: j.limits, Signals: signals,
		Say: func(text string) { j.app.say("%q: %s", j.name, oneLine(text)) }})
	if err != nil {
		return startFailure(err)
	}
	j.report.ran(result, time.Since(begun))
	j.app.code = j.codeFor(result)
	g.awaitEnd()
	return nil
}

// startFailure returns the error of a command that was found but did not start.
func startFailure(err error) error {
	var start *supervise.StartError
	if errors.As(err, &start) {
		return execFailure(err, ", or --shell")
	}
	return fail(exitBug, "%w", err)
}

// execFailure returns the error of a command that was found but cannot be executed, with the
// alternatives to a #! line in a script without one.
func execFailure(err error, alternatives string) error {
	if errors.Is(err, syscall.ENOEXEC) {
		err = fmt.Errorf("%w (a script needs a #! line%s)", err, alternatives)
	}
	return fail(exitNotRunnable, "command not executable: %w", err)
}

func (j *job) codeFor(r supervise.Result) int {
	switch {
	case r.Outcome == supervise.Lost || r.Outcome == supervise.MaxHold:
		return j.flags.lostCode
	case r.Status.Signal != 0:
		return exitSignal + int(r.Status.Signal)
	}
	return r.Status.Code
}

func (a *app) holdCommand() *cobra.Command {
	var f waitFlags
	c := &cobra.Command{
		Use: "hold NAME", Short: "Hold a lock until the standard input ends", Args: oneArg("name"),
		Example: `  interlock locks hold nightly           Ctrl-D gives it up
  interlock locks hold nightly --no-wait < pipe`,
		Long: `It prints one JSON line when the lock is granted. If the lock is lost, it exits with
79 at once, and the reader of the line must stop. To run a command under a lock use
"interlock lock", which stops the command itself.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cmp.Or(f.check(c.Flags()), checkName(args[0]), checkHeld(args[0]), a.resolveTTL(c.Flags(), &f.ttl)); err != nil {
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
	// A grant that nobody can read is an error, and the lock is released. A read of the terminal
	// in the background fails, instead of stopping the process with the lock.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGTTIN)
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

// granted is the output of locks hold.
type granted struct {
	Lock  string          `json:"lock"`
	Token interlock.Token `json:"token,string"`
	Owner string          `json:"owner"`
	TTLMS int64           `json:"ttl_ms"`
}

// waitForEnd waits for the end of the input, of the claim, or of ctx. The read cannot be
// interrupted; it ends with the process.
func waitForEnd(ctx context.Context, g *grant, in io.Reader) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	select {
	case err := <-ended:
		if errors.Is(err, syscall.EIO) {
			return usage("the terminal cannot be read in the background: write sleep 60 | interlock locks hold %s &", g.Name())
		}
		return nil // a failed input has ended too
	case <-ctx.Done():
		return signalError(ctx)
	case <-g.Context().Done():
		return fail(exitLost, "%q is lost: %w", g.Name(), context.Cause(g.Context()))
	}
}
