package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/coordinate"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// journalFlags select the journal of a backend.
type journalFlags struct {
	name   string
	shards int
}

func (f *journalFlags) add(c *cobra.Command) {
	c.PersistentFlags().StringVar(&f.name, "journal", "", "the journal's tables, or its prefix in etcd (default: interlock_journal, or none)")
	c.PersistentFlags().IntVar(&f.shards, "shards", 0, "number of shards of the journal, the same for all processes that use it (default 64; to show and repair, what it has)")
}

type coordinateFlags struct {
	journalFlags
	listen       string
	ttl          time.Duration
	participants []string
	allow        []string
	sweeps       []string
	networks     []string
	tokenFile    string
	hosts        []string
	total, each  int
	signWith     string
	certificate  string
	key, ca      string
	verbose      bool
	keep         time.Duration
}

func (a *app) coordinateCommand() *cobra.Command {
	var f coordinateFlags
	c := &cobra.Command{
		Use: "coordinate", Short: "Run transactions for services in any language", Args: noArgs,
		Example: `  interlock coordinate --backend postgres://localhost/shop
  interlock coordinate --allow http://10.0.0.0/ --allow http://stock.internal/
  interlock coordinate --participant north=http://10.0.0.7/branch --participant south=http://10.0.0.8/branch`,
		Long: `Accepts sagas, TCC and two-phase commits as JSON over HTTP, and records decisions in the
journal of the backend. It calls the branches, which are HTTP endpoints, until each
transaction has ended. docs/reference/http.md has the requests. Start any number on one
backend: they share the work, and take over from one that dies. On MariaDB one works
and the others stand by.

Errors, and transactions that wait for a person, are printed on standard error. A signal
ends it: requests under way are answered, and another one takes over the rest. A second
signal ends it at once.

Every client that reaches it can start transactions. Beyond loopback it requires --token-file
and --allow. A request must carry a token of the file as Authorization: Bearer. The
file may have several, one a line, and is read again when it changes. The Host of a
request is an IP address, localhost or a --host. There is no TLS: put a proxy in front
where others can listen in.

--allow restricts the addresses that it calls to those below a URL, by whole segments
of the path. A name is resolved first: beyond loopback, private addresses are called
only if --allow-network has them, or a flag names the address itself. Link-local ones
always need --allow-network. --sign-secret-file signs calls as Standard Webhooks has
it, and --client-cert and --client-key show a certificate.`,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case f.ttl <= 0:
				return usage("--ttl must be above 0, not %v", f.ttl)
			case f.keep == 0:
				return usage("--keep must not be 0; a negative time keeps transactions for ever")
			}
			if err := a.resolveTTL(c.Flags(), &f.ttl); err != nil {
				return err
			}
			return a.coordinate(c.Context(), f)
		},
	}
	f.add(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7461", "`host:port` for requests; port 0 picks a free one")
	c.Flags().DurationVar(&f.ttl, "ttl", 15*time.Second, "time after which others take over the work of a dead coordinator, instead of ?ttl= of the URL")
	c.Flags().StringArrayVar(&f.participants, "participant", nil, "`NAME=URL` of a service in two-phase commits, http:// or https://; the same in all that share the journal")
	c.Flags().StringArrayVar(&f.allow, "allow", nil, "call only addresses below this `URL`; required beyond loopback")
	c.Flags().StringArrayVar(&f.sweeps, "sweep", nil, "send the participant at this `URL` its low-water marks, every 10 minutes")
	c.Flags().StringArrayVar(&f.networks, "allow-network", nil, "call private addresses of this `CIDR` too")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "accept only requests with a token in this `FILE`, one a line")
	c.Flags().StringArrayVar(&f.hosts, "host", nil, "accept this `NAME` in the Host of requests")
	c.Flags().IntVar(&f.total, "max-connections", 2048, "limit of connections")
	c.Flags().IntVar(&f.each, "max-connections-per-address", 512, "limit of connections from one address")
	c.Flags().StringVar(&f.signWith, "sign-secret-file", "", "sign calls with the secrets in this `FILE`, one a line")
	c.Flags().StringVar(&f.certificate, "client-cert", "", "client certificate `FILE` for branches")
	c.Flags().StringVar(&f.key, "client-key", "", "key `FILE` of the client certificate")
	c.Flags().StringVar(&f.ca, "ca", "", "`FILE` of certificates that verify branches (default: the system's)")
	c.Flags().DurationVar(&f.keep, "keep", coordinator.DefaultKeep, "how long to keep a transaction after its end; negative: forever")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "print each call that fails")
	return c
}

// exposed reports whether other machines can reach the coordinator. It then requires --token-file
// and --allow.
func (f coordinateFlags) exposed() (bool, error) {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return false, usage("--listen %s is not host:port: %w", f.listen, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return false, nil
	}
	if f.tokenFile == "" {
		return true, usage("--listen %s can be reached from other machines, and every client could start transactions: give a --token-file", f.listen)
	}
	if len(f.allow) == 0 {
		return true, usage("--listen %s can be reached from other machines, and they could make it call any address: give the permitted ones with --allow", f.listen)
	}
	return true, nil
}

// calls returns the options of branch calls. A private IP address may be called if a flag names
// it.
func (f coordinateFlags) calls(exposed bool) (coordinate.Calls, error) {
	c := coordinate.Calls{Local: !exposed && len(f.networks) == 0, SecretFile: f.signWith, Certificate: f.certificate, Key: f.key, CA: f.ca}
	if (f.certificate == "") != (f.key == "") {
		return c, usage("--client-cert and --client-key are given together")
	}
	for _, text := range f.networks {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return c, usage("--allow-network %s is no network, as in 10.0.0.0/8", text)
		}
		c.Networks = append(c.Networks, n.Masked())
	}
	for _, text := range slices.Concat(f.allow, f.participants, f.sweeps) {
		if _, address, ok := strings.Cut(text, "="); ok && !strings.Contains(text[:strings.Index(text, "=")], "/") {
			text = address
		}
		if u, err := url.Parse(text); err == nil {
			if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
				c.Networks = append(c.Networks, netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
			}
		}
	}
	return c, nil
}

// options returns the options of package httpapi.
func (f coordinateFlags) options() (o httpapi.Options, err error) {
	o.Participants = map[string]string{}
	for _, text := range f.participants {
		name, address, err := parseParticipant(text)
		if err != nil {
			return o, err
		}
		if o.Participants[name] != "" {
			return o, usage("--participant names %s twice", name)
		}
		if u, err := url.Parse(address); err == nil && u.Scheme != "http" && u.Scheme != "https" {
			return o, usage("--participant %s is not an http:// URL of a service; only Go programs commit in databases directly", name)
		}
		o.Participants[name] = address
	}
	for _, text := range f.sweeps {
		if u, err := url.Parse(text); err != nil || u.Hostname() == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			return o, usage("--sweep %s is no address of a participant, as in http://10.0.0.7/forget", branchhttp.Redact(text))
		}
	}
	if len(f.allow) == 0 {
		return o, nil
	}
	if o.Allow, err = httpapi.Within(f.allow...); err != nil {
		return o, usage("--allow: %w", err)
	}
	for _, text := range f.sweeps {
		if u, err := url.Parse(text); err != nil || o.Allow(u) != nil {
			return o, usage("--sweep %s is not below an address of --allow", branchhttp.Redact(text))
		}
	}
	return o, nil
}

func (a *app) coordinate(ctx context.Context, f coordinateFlags) error {
	if f.total < 1 || f.each < 1 {
		return usage("--max-connections and --max-connections-per-address must be above zero, not %d and %d", f.total, f.each)
	}
	target, err := a.target()
	if err != nil {
		return err
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	exposed, err := f.exposed()
	if err != nil {
		return err
	}
	calls, err := f.calls(exposed)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // messages that nobody reads do not end the service
	messages := newMessageQueue(a.err)
	defer messages.close()
	hooks := a.sayingTo(messages)
	hooks.tell(&options, f.verbose)
	ctx, stop := untilStopped(ctx)
	stop = sync.OnceFunc(stop)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal ends the process
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	s, err := coordinate.Open(opening, coordinate.Config{Backend: target, Journal: f.name, Shards: f.shards, TTL: f.ttl, Keep: f.keep, Prefix: a.prefix,
		Web: options, Calls: calls, Sweeps: f.sweeps, Access: coordinate.Access{TokenFile: f.tokenFile, Hosts: f.hosts, Total: f.total, Each: f.each}, Tell: told(hooks, func(err error) text { return line("%v", withAdvice(err)) }), Log: hooks.warnings()})
	switch {
	case err != nil && signalError(ctx) != nil:
		return nil
	case interlock.Kind(err) == interlock.Bug: // of the flags
		return usage("%w", err)
	case err != nil:
		return a.backendError(target, err)
	}
	defer s.Close()
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fail(exitFailed, "cannot listen on %s: %w", f.listen, err)
	}
	err = s.Serve(ctx, l, func() {
		a.serves(serving{l.Addr().String(), target.String()}, line("coordinating on http://%s, journal on %v\n", l.Addr(), target))
	})
	var asked *signalled
	if errors.As(err, &asked) || errors.Is(err, context.Canceled) {
		return nil
	}
	return a.backendError(target, err)
}

// tell makes a coordinator report transactions that wait for an operator, with the
// command that shows them, and all other warnings, of each hook 20 in a second at most; with
// calls, also each failed call.
func (a *app) tell(o *httpapi.Options, calls bool) {
	sagaProtocol := &observe.Saga{
		Log:   a.warnings(),
		Tried: func(observe.SagaTried) {},
		Dead: told(a, func(e observe.SagaDead) text {
			return line("saga %s waits for an operator: the undo of %s failed for good; see %s", e.Saga, strings.Join(e.Steps, ", "), command("interlock", "saga", "show", e.Saga))
		}),
		Stuck: told(a, func(e observe.SagaStuck) text {
			return line("saga %s is past its pivot, and step %s has failed %d times: %v", e.Saga, e.Step, e.Attempts, e.Err)
		}),
	}
	tccProtocol := &observe.TCC{Log: a.warnings(), Tried: func(observe.TCCTried) {}, Dead: told(a, func(e observe.TCCDead) text {
		return line("transaction %s waits for an operator: the decision is %s, refused by %s; see %s",
			e.Transaction, e.Decision, strings.Join(e.Branches, ", "), command("interlock", "tcc", "show", e.Transaction))
	})}
	xaProtocol := &observe.TwoPC{
		Log:   a.warnings(),
		Tried: func(observe.TwoPCTried) {},
		Halted: told(a, func(e observe.TwoPCHalted) text {
			return line("transaction %s is halted, not committed by %s: %s; see %s, then %s", e.Transaction, strings.Join(e.Participants, ", "), e.Reason,
				command("interlock", "xa", "show", e.Transaction), command("interlock", "xa", "retry", e.Transaction))
		}),
		Heuristic: told(a, func(e observe.TwoPCHeuristic) text {
			return line("transaction %s waits for an operator: finished against the decision by %s: %v; see %s",
				e.Transaction, strings.Join(e.Participants, ", "), e.Err, command("interlock", "xa", "show", e.Transaction))
		}),
		Orphan: told(a, func(e observe.TwoPCOrphan) text {
			return line("transaction %s has been in doubt at %s for %v: %s", e.Transaction, e.Participant, e.Age.Round(time.Second), because(e.Verdict, e.Err))
		}),
	}
	if calls {
		sagaProtocol.Tried = func(e observe.SagaTried) { a.tried("saga", e.Saga, e.Step, undo(e.Undo), e.Err, e.Again) }
		tccProtocol.Tried = func(e observe.TCCTried) {
			a.tried("transaction", e.Transaction, e.Branch, e.Operation, e.Err, e.Again)
		}
		xaProtocol.Tried = func(e observe.TwoPCTried) {
			a.tried("transaction", e.Transaction, e.Participant, map[bool]string{true: "commit", false: "rollback"}[e.Commit], e.Err, e.Again)
		}
	}
	o.Sagas, o.TCC, o.TwoPC = &saga.Options{Hooks: sagaProtocol}, &tcc.Options{Hooks: tccProtocol}, &twopc.Options{Hooks: xaProtocol}
}

// warnings returns a logger that prints each warning as a line on the standard error.
func (a *app) warnings() *slog.Logger { return slog.New(warningHandler{slog.DiscardHandler, a}) }

type warningHandler struct {
	slog.Handler
	app *app
}

// Enabled implements [slog.Handler].
func (warningHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements [slog.Handler].
func (h warningHandler) Handle(_ context.Context, r slog.Record) error {
	t := line("%s:", r.Message)
	r.Attrs(func(a slog.Attr) bool {
		t += line(" %s", a)
		return true
	})
	h.app.say("%s", t)
	return nil
}

// told returns a hook that prints a line for each event, up to 20 in a second.
func told[E any](a *app, format func(E) text) func(E) {
	var limit observe.LogLimit
	return func(e E) {
		suppressed, ok := limit.Admit()
		if !ok {
			return
		}
		t := format(e)
		if suppressed > 0 {
			t += line(" suppressed=%d", suppressed)
		}
		a.say("%s", t)
	}
}

// tried reports a failed call.
func (a *app) tried(what, id, branch, operation string, err error, again time.Duration) {
	next := "not again"
	if again > 0 {
		next = "again in " + again.Round(time.Millisecond).String()
	}
	a.say("%s %s: %s %s: %v (%s)", what, id, operation, branch, err, next)
}

// undo returns the operation of a saga's call.
func undo(undo bool) string {
	if undo {
		return "undo"
	}
	return "do"
}

// because returns a verdict, and the reason if it was not executed.
func because(verdict string, err error) string {
	if err == nil {
		return verdict
	}
	return verdict + ": " + err.Error()
}
