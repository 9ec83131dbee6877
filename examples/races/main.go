// Command races shows concurrency faults and their remedies. Real workers run each race on
// a real server, in an order of steps that a seed chooses. The broken variant is code as it
// is often written; the fixed one uses Interlock. A checker of package history checks the
// recorded history. The command does not measure how often a race would occur by itself:
// that depends on luck, and the steps are forced here.
//
//	races                                                   # lists them
//	races -race lost-update -variant broken -seed 7 -postgres URL
//	races -race lost-update -variant fixed  -seed 7 -postgres URL
//
// The exit code is 0 when the run reached a verdict, whatever it is. It is 2 for an invalid
// command line, and 1 for all other errors.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings is the command line.
type settings struct {
	race, variant string
	seed          uint64
	urls          map[system]*string
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	var s settings
	f := flags(&s)
	f.SetOutput(errs)
	if err := f.Parse(args); err != nil {
		return 2
	}
	if s.race == "" && f.NArg() == 0 {
		list(out)
		return 0
	}
	r, ok := find(s.race)
	play := map[string]twin{"broken": r.broken, "fixed": r.fixed}[s.variant]
	if !ok || play == nil || f.NArg() > 0 {
		fmt.Fprintf(errs, "races: there is no race %q with a variant %q; without arguments they are listed\n", s.race, s.variant)
		return 2
	}
	url := *s.urls[r.system]
	if url == "" {
		fmt.Fprintf(errs, "races: %s needs %s: name a server, such as -%s %s\n", r.name, r.system, r.system, urls[r.system])
		fmt.Fprintln(errs, "It creates tables that begin with race_ and keys that begin with race:, and does not remove them.")
		return 2
	}
	if err := show(ctx, r, play, s, url, out); err != nil {
		fmt.Fprintln(errs, "races:", err)
		return 1
	}
	return 0
}

// urls are examples of URLs.
var urls = map[system]string{
	onPostgres: "postgres://me@127.0.0.1:5432/test",
	onMariaDB:  "'me:secret@tcp(127.0.0.1:3306)/test'",
	onRedis:    "redis://127.0.0.1:6379",
}

func flags(s *settings) *flag.FlagSet {
	f := flag.NewFlagSet("races", flag.ContinueOnError)
	f.StringVar(&s.race, "race", "", "`name` of the race")
	f.StringVar(&s.variant, "variant", "broken", "broken or fixed")
	f.Uint64Var(&s.seed, "seed", 1, "chooses who goes first, how many there are, and amounts")
	s.urls = map[system]*string{}
	for kind, like := range urls {
		s.urls[kind] = f.String(string(kind), "", "`URL` of a server, such as "+like)
	}
	return f
}

func list(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range races {
		fmt.Fprintf(w, "%s\ton %s\t%s\n\t\tremedy: %s\n", r.name, r.system, r.symptom, r.remedy)
	}
	w.Flush()
}

// show runs one race, and prints its timeline and the verdict of its checker.
func show(ctx context.Context, r race, play twin, s settings, url string, out io.Writer) error {
	where, done, err := connect(ctx, r.system, url)
	if done != nil {
		defer done()
	}
	if err == nil && r.prepare != nil {
		err = r.prepare(ctx, where)
	}
	if err != nil {
		return err
	}
	o, err := r.run(ctx, where, play, s.seed)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, %s, seed %d\n\n%v", r.name, s.variant, s.seed, o)
	return nil
}
