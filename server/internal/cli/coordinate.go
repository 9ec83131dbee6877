package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/coordinate"
	"github.com/interlock-dev/interlock/txn/web"
)

// journalFlags say which journal of a backend is meant.
type journalFlags struct {
	name   string
	shards int
}

func (f *journalFlags) add(c *cobra.Command) {
	c.PersistentFlags().StringVar(&f.name, "journal", "", "the journal's tables, or its prefix in etcd (default: interlock_journal, or none)")
	c.PersistentFlags().IntVar(&f.shards, "shards", 64, "over how many shards the journal is spread, the same for all who use it")
}

type coordinateFlags struct {
	journalFlags
	listen       string
	ttl          time.Duration
	participants []string
	allow        []string
	tokenFile    string
	verbose      bool
}

func (a *app) coordinateCommand() *cobra.Command {
	var f coordinateFlags
	c := &cobra.Command{
		Use: "coordinate", Short: "Run sagas, TCC and two-phase commits for services in any language", Args: noArgs,
		Example: `  interlock coordinate --backend postgres://localhost/shop
  interlock coordinate --allow http://10.0.0.0/ --allow http://stock.internal/
  interlock coordinate --participant north=http://10.0.0.7/branch --participant south=http://10.0.0.8/branch`,
		Long: `Takes transactions as JSON over HTTP, keeps what is decided in the journal of the
backend, and calls their branches, which are HTTP endpoints, until each transaction
has come to its end. docs/http.md has the requests. Start as many as you like on one
backend: they share the work, and take over from one that dies. On MariaDB one works
and the others stand by.

What waits for a person, and what goes wrong, is told on the standard error. A signal
ends it: requests under way are answered, and another one takes over the rest.

Who reaches it starts transactions: beyond loopback it listens only with --token-file,
and a request has to show what is in the file, as Authorization: Bearer. It has no TLS;
put a proxy in front where others can listen in. --allow restricts the addresses that
it calls to those that begin so.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.coordinate(c.Context(), f) },
	}
	f.add(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7461", "`host:port` for requests; port 0 picks a free one")
	c.Flags().DurationVar(&f.ttl, "ttl", 15*time.Second, "how long the work of one that died waits for another")
	c.Flags().StringArrayVar(&f.participants, "participant", nil, "`NAME=URL` of a participant of two-phase commit, the same with all who share the journal")
	c.Flags().StringArrayVar(&f.allow, "allow", nil, "call only addresses that begin with this `URL`")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "take requests only from those who show what is in this `FILE`")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "tell of each call that fails")
	return c
}

// token is what requests have to show. Without one only this machine is listened to.
func (f coordinateFlags) token() (string, error) {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return "", usage("--listen %s is not host:port: %w", f.listen, err)
	}
	if f.tokenFile == "" {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return "", usage("--listen %s can be reached from other machines, where anybody could start transactions: give a --token-file", f.listen)
		}
		return "", nil
	}
	text, err := os.ReadFile(f.tokenFile)
	if err != nil {
		return "", usage("--token-file cannot be read: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 {
		return "", usage("--token-file %s has %d bytes: make one of 16 at least, such as by openssl rand -hex 32", f.tokenFile, len(token))
	}
	return token, nil
}

// options are those of package web.
func (f coordinateFlags) options() (o web.Options, err error) {
	o.Participants = map[string]string{}
	for _, text := range f.participants {
		name, address, ok := strings.Cut(text, "=")
		if !ok || name == "" || o.Participants[name] != "" {
			return o, usage("--participant %s is not NAME=URL, or comes twice", text)
		}
		o.Participants[name] = address
	}
	for _, text := range f.allow {
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.Path == "" {
			return o, usage("--allow %s is not the beginning of an address: it has a scheme, a host and a path, as in http://10.0.0.7/", text)
		}
	}
	if len(f.allow) > 0 {
		o.Allow = func(u *url.URL) error {
			if slices.ContainsFunc(f.allow, func(begin string) bool { return within(u, begin) }) {
				return nil
			}
			return fmt.Errorf("--allow names no address that it begins with")
		}
	}
	return o, nil
}

// within reports whether an address lies below another.
func within(u *url.URL, begin string) bool {
	b, err := url.Parse(begin)
	return err == nil && u.Scheme == b.Scheme && u.Host == b.Host && strings.HasPrefix(cleanPath(u), b.Path)
}

// cleanPath is a path without what would lead out of it, also where that is encoded.
func cleanPath(u *url.URL) string {
	p := path.Clean("/" + u.Path)
	if strings.HasSuffix(u.Path, "/") && p != "/" {
		p += "/"
	}
	return p
}

func (a *app) coordinate(ctx context.Context, f coordinateFlags) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	token, err := f.token()
	if err != nil {
		return err
	}
	a.tell(&options, f.verbose)
	signals := make(chan os.Signal, 1)
	subscribe(signals, stopSignals)
	ctx, stop := ending(ctx, signals)
	defer stop()
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	s, err := coordinate.Open(opening, coordinate.Config{Backend: target, Journal: f.name, Shards: f.shards, TTL: f.ttl, Prefix: a.prefix,
		Web: options, Token: token, Tell: func(err error) { a.say("%v", err) }})
	if interlock.Kind(err) == interlock.Bug { // of what was typed
		return usage("%w", err)
	}
	if err != nil {
		return a.unreached(target, err)
	}
	defer s.Close()
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fail(exitFailed, "cannot listen on %s: %w", f.listen, err)
	}
	a.serves(serving{l.Addr().String(), target.String()}, line("coordinating on http://%s, journal on %v\n", l.Addr(), target))
	err = s.Serve(ctx, l)
	var asked *signalled
	if errors.As(err, &asked) || errors.Is(err, context.Canceled) {
		return nil
	}
	return a.unreached(target, err)
}
