package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/supervise"
)

// electFlags are the flags of interlock elect. A candidate waits without a limit.
type electFlags struct {
	lockFlags
	onLose, data, identity string
	acceptWeakness         bool
}

func (a *app) electCommand() *cobra.Command {
	f := &electFlags{}
	c := &cobra.Command{
		Use: "elect NAME [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command while leading",
		Example: `  interlock elect billing -- ./serve
  interlock elect billing --on-lose wait -- ./serve            campaign again when it is lost
  interlock elect billing --data 10.0.0.1:80 -- ./serve        what observers see
  interlock elect observe billing                              who leads, whenever that changes`,
		Long: `Of all processes that use one NAME, one runs its COMMAND; the others wait until that
command has ended. The leader then resigns and returns the command's exit code.

If the leadership cannot be renewed, the command and all processes that it started get
TERM. After --grace they get KILL, before another process can lead. Then --on-lose exit
(the default) exits with 79, and --on-lose wait campaigns again.

An election of a name is a lock of that name. The command has INTERLOCK_TOKEN and the
other variables of "interlock lock" in its environment.

Redis, MariaDB, and PostgreSQL with ?mode=table are refused without --accept-weakness:
after a crash, a failover or a network partition, two commands may run for a while.`,
		// RunE rejects what cobra would reject before it, with our messages.
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeJob(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			return (&candidate{flags: f, job: job{app: a, flags: &f.lockFlags, outer: os.Getenv(envHeld)}}).run(c, args)
		},
	}
	f.add(c)
	completes(c, "on-lose", "exit", "wait")
	completes(c, "on-suspend", "continue", "release", "kill")
	c.AddCommand(a.observeCommand())
	return c
}

func (f *electFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.DurationVar(&f.ttl, "ttl", 30*time.Second, ttlUsage)
	flags.DurationVar(&f.grace, "grace", 0, "time between TERM and KILL (default: 5s, or a sixth of --ttl if that is shorter)")
	flags.BoolVar(&f.shell, "shell", false, "COMMAND is a script for /bin/sh, the ARGUMENTs are its $1…")
	flags.BoolVar(&f.noStdin, "no-stdin", false, "the command reads /dev/null")
	flags.StringVar(&f.onSuspend, "on-suspend", "continue", "what Ctrl-Z does to the command: continue, release (TERM, then resign) or kill")
	flags.IntVar(&f.lostCode, "lost-exit-code", exitLost, "exit `code` when the leadership was lost, with --on-lose exit")
	flags.StringVar(&f.onLose, "on-lose", "exit", "action when the leadership is lost: exit, or wait for the next one")
	flags.StringVar(&f.data, "data", "", "data for observers of this leadership, such as an address")
	flags.StringVar(&f.identity, "as", "", "identity for observers (default: host name and process id)")
	flags.BoolVar(&f.acceptWeakness, "accept-weakness", false, "accept a backend that may elect two leaders after a crash or failover")
}

func electArgs(c *cobra.Command, args []string) error {
	const form = "write interlock elect NAME -- COMMAND [ARGUMENT…]"
	switch dash := c.ArgsLenAtDash(); {
	case dash < 0 || dash == len(args):
		return usage("there is no command after --; %s", form)
	case dash != 1:
		return usage("%d names were given before --, one can be led; %s", dash, form)
	}
	return nil
}

// candidate is one run of interlock elect. Its job runs in each term.
type candidate struct {
	job
	flags *electFlags
	place place
}

func (d *candidate) prepare(c *cobra.Command, args []string) error {
	if d.flags.onLose != "exit" && d.flags.onLose != "wait" {
		return usage("--on-lose %s is not known; it is exit or wait", d.flags.onLose)
	}
	if len(d.flags.data) > elect.MaxData {
		return usage("--data has %d bytes, at most %d are allowed", len(d.flags.data), elect.MaxData)
	}
	if target, err := d.app.target(); err == nil && d.flags.data != "" && !target.KeepsValues() {
		return usage("--data is for etcd, redis, postgres, zookeeper and consul; %s keeps no values under tokens", target.Kind())
	}
	return cmp.Or(electArgs(c, args), d.job.prepare(c, args))
}

func (d *candidate) run(c *cobra.Command, args []string) error {
	signals := make(chan os.Signal, 16)
	subscribe(signals, forwarded)
	defer unsubscribe(signals)
	if err := d.prepare(c, args); err != nil {
		return err
	}
	opening, stop := untilSignal(c.Context(), signals)
	err := d.place.open(opening, d.app, d.flags.ttl, d.options())
	stop()
	var unmet *interlock.UnmetError
	switch {
	case errors.As(err, &unmet) && !d.flags.acceptWeakness:
		return fail(exitConfig, "%w; --accept-weakness leads all the same", unmet)
	case err != nil:
		return err
	}
	defer d.place.close()
	for {
		again, err := d.term(c.Context(), signals)
		if !again {
			return err
		}
	}
}

func (d *candidate) options() elect.Options {
	o := elect.Options{Identity: d.flags.identity, Hooks: &elect.Hooks{Lock: &observe.Lock{
		Log:           observe.Silent, // a term reports its end itself
		RequestFailed: d.app.reportRetry,
		ReleaseFailed: func(e observe.LockReleaseFailed) {
			d.app.say("warning: the leadership of %q could not be given up, it may last until it expires: %v", e.Name, e.Err)
		},
	}}}
	if d.flags.acceptWeakness {
		o.Accept = elect.Required
	}
	return o
}

// again is the pause before the next attempt on an unreachable backend, with
// --on-lose wait.
const again = time.Second

// term campaigns and leads once. more requests another term.
func (d *candidate) term(ctx context.Context, signals chan os.Signal) (more bool, err error) {
	waiting, stop := untilSignal(ctx, signals)
	stop = sync.OnceFunc(stop)
	defer stop()
	n := &waitNotice{app: d.app, inspector: d.place.link.driver, name: d.name}
	quiet := sync.OnceFunc(n.start(waiting))
	defer quiet()
	var result supervise.Result
	led := false
	err = d.place.elections.Run(waiting, d.name, func(_ context.Context, t *elect.Term) error {
		quiet()
		stop() // the command receives signals from now on
		if s := signalError(waiting); s != nil {
			return s
		}
		led = true
		result, err = d.lead(ctx, t, signals)
		return err
	})
	wait := d.flags.onLose == "wait"
	switch {
	case led && wait && result.Outcome == supervise.Lost && !result.Asked:
		signal.Reset(watched...) // a wait may be suspended
		d.app.say("%q: the leadership was lost; campaigning again", d.name)
		return true, nil
	case led && result.Outcome != "":
		d.app.code = d.codeFor(result)
		return false, nil
	case signalError(waiting) != nil:
		return false, signalError(waiting)
	case wait && codeOf(err) == exitUnreachable:
		d.app.say("%q: %v; trying again", d.name, err)
		ctx, stop := untilSignal(ctx, signals)
		defer stop()
		err = pause(ctx, again)
		return err == nil, err
	}
	return false, d.place.explain(err)
}

// lead runs the command for one term.
func (d *candidate) lead(ctx context.Context, t *elect.Term, signals chan os.Signal) (supervise.Result, error) {
	if d.flags.data != "" {
		if result, err := d.proclaim(ctx, t, signals); err != nil || result.Outcome != "" {
			return result, err
		}
	}
	subscribe(signals, watched)
	d.command.Env = held{name: d.name, owner: t.Owner(), backend: d.place.link.target.Public(), prefix: d.app.prefix,
		token: t.Token(), ttl: d.flags.ttl, outer: d.outer}.environ(os.Environ())
	result, err := supervise.Run(t, d.command, supervise.Options{Limits: d.limits, Signals: signals,
		Say: func(text string) { d.app.say("%q: %s", d.name, oneLine(text)) }})
	if err != nil {
		return result, startFailure(err)
	}
	return result, nil
}

// proclaim stores the data. The result has an outcome if the term has ended.
func (d *candidate) proclaim(ctx context.Context, t *elect.Term, signals <-chan os.Signal) (r supervise.Result, err error) {
	ctx, stop := untilSignal(ctx, signals)
	err = t.Proclaim(ctx, []byte(d.flags.data))
	stop()
	switch {
	case signalError(ctx) != nil:
		return r, signalError(ctx)
	case err != nil && t.Context().Err() != nil:
		d.app.say("%q: the leadership was lost: %v", d.name, err)
		return supervise.Result{Outcome: supervise.Lost, Why: err}, nil
	}
	return r, err
}

// place is a lock service and its values, where elections run.
type place struct {
	link      *grant // the driver and its close; without a claim
	elections *elect.Election
	forget    func() // disconnects from the values
}

// open connects within --timeout. On an error it closes everything.
func (p *place) open(ctx context.Context, a *app, ttl time.Duration, o elect.Options) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	d, err := a.open(ctx, target, ttl, a.reconnects(waitFlags{forever: true}))
	if err != nil {
		return err
	}
	p.link = &grant{app: a, target: target, driver: d}
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	o.Values, p.forget, err = target.Values(opening, a.prefix)
	if err == nil {
		p.elections, err = elect.New(d, &o)
	}
	if err != nil {
		p.close()
		return p.explain(err)
	}
	return nil
}

func (p *place) close() {
	if p.elections != nil {
		ctx, cancel := context.WithTimeout(context.Background(), disconnect)
		defer cancel()
		_ = p.elections.Close(ctx) // open terms expire, and the driver reports errors
	}
	p.link.close()
	if p.forget != nil {
		p.forget()
	}
}

// explain returns the error for the command line.
func (p *place) explain(err error) error { return p.link.app.backendError(p.link.target, err) }

func (a *app) observeCommand() *cobra.Command {
	once := false
	c := &cobra.Command{
		Use: "observe NAME", Short: "Print the leader at each change", Args: oneArg("name"),
		Example: `  interlock elect observe billing
  interlock elect observe billing -o json         one line of JSON each; leader is null if there is none
  interlock elect observe billing --once          who leads now`,
		Long:              `A signal ends it, with 0; with --once it is 128+n, because nothing was printed.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() >= 0 {
				return usage("elect observe takes no command; an election that is led cannot be called observe here")
			}
			if err := checkName(args[0]); err != nil {
				return err
			}
			err := a.observe(c.Context(), args[0], once)
			if !once && errors.As(err, new(*signalled)) {
				return nil
			}
			return err
		},
	}
	c.Flags().BoolVar(&once, "once", false, "exit after the first line")
	return c
}

// observe prints leaders until a signal arrives or the output is closed.
func (a *app) observe(ctx context.Context, name string, once bool) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	var p place
	// An observer needs no guarantee of the backend.
	if err := p.open(ctx, a, 0, elect.Options{InProcess: true}); err != nil {
		return err
	}
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var printing error
	done := false
	err := p.elections.Observe(ctx, name, func(l elect.Leader) {
		if done {
			return
		}
		holder := ""
		if l.Owner == "" {
			holder = p.holder(ctx, name)
		}
		if printing = a.printLeader(name, l, holder); printing != nil || once {
			done = true
			cancel()
		}
	})
	switch {
	case done:
		return printing
	case signalError(ctx) != nil:
		return signalError(ctx)
	}
	return p.explain(err)
}

// holder returns the owner of the lock of a name, which may be no leader: a lock and an election of one
// name exclude each other. It is empty if the lock is free or cannot be read.
func (p *place) holder(ctx context.Context, name string) string {
	state, err := p.link.driver.Lock(ctx, name)
	if err != nil || state.Holder == nil {
		return ""
	}
	return state.Holder.Owner
}

// leaderView is the JSON form of a leader.
type leaderView struct {
	Identity string          `json:"identity"`
	Owner    string          `json:"owner"`
	Token    interlock.Token `json:"token,string,omitempty"`
	Since    time.Time       `json:"since,omitzero"`        // by the backend's clock
	Data     string          `json:"data,omitempty"`        // if it is text
	Base64   string          `json:"data_base64,omitempty"` // if it is not
	Nominee  string          `json:"nominee,omitempty"`
}

func (a *app) printLeader(name string, l elect.Leader, holder string) error {
	view := struct {
		Name   string      `json:"name"`
		Leader *leaderView `json:"leader"`           // null if there is no leader
		Holder string      `json:"holder,omitempty"` // of the lock of that name, if there is no leader
	}{Name: name}
	t := line("%s has no leader\n", name)
	if holder != "" {
		view.Holder = holder
		t = line("%s has no leader; %s holds the lock of that name\n", name, holder)
	}
	if l.Owner != "" {
		view.Leader = viewLeader(l)
		t = line("%s leads %s, token %d", l.Identity, name, l.Token)
		if len(l.Data) > 0 {
			t += line(", %s", string(l.Data))
		}
		if l.Nominee != "" {
			t += line(", to be followed by %s", l.Nominee)
		}
		t += "\n"
	}
	return a.print(view, t)
}

func viewLeader(l elect.Leader) *leaderView {
	v := &leaderView{Identity: l.Identity, Owner: l.Owner, Token: l.Token, Since: l.Since.UTC(), Nominee: l.Nominee}
	if utf8.Valid(l.Data) {
		v.Data = string(l.Data)
	} else {
		v.Base64 = base64.StdEncoding.EncodeToString(l.Data)
	}
	return v
}
