// Package cli is the command line of interlock: input, output and exit codes. It decides nothing
// about locks; claim/lock and the drivers do. docs/reference/cli.md is its reference.
//
//	os.Exit(cli.Run(os.Args))
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// app is the common part of all commands: global flags and streams.
type app struct {
	program string // the called name, for suggested commands
	backend string
	prefix  string
	output  string
	timeout time.Duration
	changes bool // the command changes something, with a --reason
	in      *os.File
	out     io.Writer
	err     io.Writer
	code    int // exit code of a command without an error
}

// Run runs one command line, which starts with the program's name, and returns the exit code.
func Run(args []string) int {
	quietLibraries()
	return newApp(args[0], os.Stdout, os.Stderr).run(args[1:])
}

func newApp(program string, out, err io.Writer) *app {
	return &app{program: program, in: os.Stdin, out: &terminal{out: out}, err: &terminal{out: err}}
}

func (a *app) run(args []string) (code int) {
	defer func() {
		if bug := recover(); bug != nil {
			a.say("a bug: %v\n%s", bug, lines(string(debug.Stack())))
			code = exitBug
		}
	}()
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		a.out = &completionWriter{to: a.out}
	}
	root := a.root()
	root.SetArgs(args)
	if err := root.ExecuteContext(context.Background()); err != nil {
		a.sayError(err, a.output == "json" || wantsJSON(args))
		return codeOf(err)
	}
	return a.code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "interlock COMMAND",
		Short: "Distributed locks with fencing tokens, and guards that reject stale writes",
		Example: `  interlock dev                                  a lock service on this machine
  interlock lock nightly -- ./backup.sh          run a command under a lock
  interlock locks show nightly                   shows its holder and waiters`,
		SilenceErrors: true, SilenceUsage: true,
		Args: isGroup,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	a.globals(root)
	root.Version = buildVersion().Version
	root.SetVersionTemplate(string(versionText(buildVersion())))
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetHelpTemplate(helpTemplate)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w%s; %s --help explains the flags", wrongValue(err), flagSuggestion(c, err), c.CommandPath())
	})
	root.SetHelpCommand(withoutBackend(helpCommand())[0])
	root.CompletionOptions.DisableDefaultCmd = true // ours reports errors
	root.AddCommand(a.lockCommand(), a.limitCommand(), a.limitsCommand(), a.electCommand(), a.locksCommand(), a.guardCommand(), a.tokensCommand(),
		a.outboxCommand(), a.sequenceCommand(), a.queueCommand(), a.dlqCommand(), a.sagaCommand(), a.tccCommand(), a.xaCommand(), a.coordinateCommand(), a.doctorCommand())
	root.AddCommand(withoutBackend(a.devCommand(), a.conformanceCommand(), a.labCommand(), a.adviseCommand(), a.versionCommand(), a.schemaCommand(),
		a.completionCommand(), exitCodesTopic())...)
	return root
}

func (a *app) globals(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.backend, "backend", "", "`URL`: etcd://host:port[,host:port…], redis://host:port, postgres://host/database, mysql://host/database, "+
		"zookeeper://host:port[,host:port…]/root, consul://host:port or kube://namespace (INTERLOCK_BACKEND; default: what interlock dev started)")
	f.StringVar(&a.prefix, "prefix", "", "prefix of the names of locks and limits, to share a backend (INTERLOCK_PREFIX)")
	f.StringVarP(&a.output, "output", "o", "text", "output format: text or json")
	f.DurationVar(&a.timeout, "timeout", 5*time.Second, "how long to try to reach the backend")
	completes(root, "output", "text", "json")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return a.checkGlobals(c) }
}

func (a *app) checkGlobals(c *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return usage("-o %s is not known; it is text or json", a.output)
	}
	a.changes = c.Flags().Lookup("reason") != nil
	if a.timeout <= 0 {
		return usage("--timeout must be above 0, not %v", a.timeout)
	}
	if !c.Flags().Changed("prefix") {
		a.prefix = os.Getenv("INTERLOCK_PREFIX")
	}
	return nil
}

// target returns the backend of the flag, else of the environment, else the development server.
func (a *app) target() (backend.Target, error) {
	for _, url := range []string{a.backend, os.Getenv("INTERLOCK_BACKEND")} {
		if url != "" {
			return backend.Parse(url)
		}
	}
	return backend.Parse("etcd://" + devEndpoint())
}

// at returns a copy for another backend: its errors are about that one.
func (a *app) at(url string) *app {
	b := *a
	b.backend = url
	return &b
}

// backendGiven reports whether a flag or the environment names the backend.
func (a *app) backendGiven() bool { return a.backend != "" || os.Getenv("INTERLOCK_BACKEND") != "" }

// withAdvice adds the next step to errors of a pooler that lends prepared statements to other
// sessions, and of keys of Redis that have another type.
func withAdvice(err error) error {
	var state interface{ SQLState() string }
	switch {
	case errors.As(err, &state) && (state.SQLState() == "42P05" || state.SQLState() == "26000"):
		return fail(codeOf(err), "%w; behind a pooler, add default_query_exec_mode=cache_describe to the URL", err)
	case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
		return fail(codeOf(err), "%w; interlock locks show NAME names the client that uses this key", err)
	}
	return err
}

// refusesForNow is the error of a backend that was reached; see backend.Answered.
const refusesForNow = "%v answers, but refuses for now: %w"

// doubt returns a note if a change may be done although it failed.
func (a *app) doubt(err error) string {
	if a.changes && errors.Is(err, interlock.ErrUncertain) {
		return "; the change may be done: look before you repeat it"
	}
	return ""
}

// backendError adds the backend and the next step to an error of its connection or rights.
func (a *app) backendError(t backend.Target, err error) error {
	var own *exitError
	switch codeOf(err) {
	case exitUnreachable:
		if errors.As(err, &own) {
			return err // it already has the unreachable address
		}
	case exitForbidden:
		if errors.As(err, &own) {
			return err // of a participant
		}
		if backend.Unauthenticated(err) {
			return fail(exitForbidden, "%v rejects the credentials: %w", t, err)
		}
		return fail(exitForbidden, "%v does not permit this: %w (interlock doctor names missing rights)", t, err)
	case exitBug:
		if errors.As(err, &own) || errors.Is(err, interlock.ErrClosed) || errors.Is(err, interlock.ErrReentered) {
			return err
		}
		return usage("%w", err) // a value of a flag or an argument that only the library checks
	default:
		if backend.NoDatabase(err) {
			return fail(exitConfig, "%v answers, but has no such database: %w", t, err)
		}
		if errors.As(err, new(*backend.URLError)) && !a.backendGiven() {
			return fail(codeOf(err), "%w; name it with --backend", err)
		}
		return withAdvice(err)
	}
	if backend.Answered(err) {
		if reason := backend.Refusal(err); reason != "" {
			return fail(exitUnreachable, "%v answers, but refuses for now, because %s: %w", t, reason, err)
		}
		return fail(exitUnreachable, refusesForNow, t, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v%s", a.timeout, a.doubt(err))
	}
	if a.backendGiven() {
		return fail(exitUnreachable, "cannot reach %v: %w", t, err)
	}
	if _, running := findDev(); running {
		return fail(exitUnreachable, "the development server runs and does not answer at %v: %w; retry, or give it longer with --timeout", t, err)
	}
	return fail(exitUnreachable, "no backend was named and none answers at %v: start one with \"%s\", or name one with --backend (%w)",
		t, command(a.program, "dev"), err)
}
