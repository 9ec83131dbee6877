package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// The narrator turns recorded histories into text for people. It makes no assertions:
// they are in check_test.go.

const prologue = `
Two workers withdraw from one account that holds 100: A takes 30, B takes 40.
Each acquires the lock, reads the balance, and writes what is left. Between its
read and its write A is stopped, as a long garbage collection or a sleeping
machine would stop it, until its lease is over. Then it goes on, and sends its
write without a look at its lock, like a program that looked just before the stop.

What follows was recorded: real processes, real servers, nothing simulated.
Times are in seconds.
`

const epilogue = `
A lock could not prevent this: nothing reaches into a stopped process. The guard
is one statement at the start of each transaction, beside the data, and is the
only difference between the programs shown here, which read and write in two
transactions, to be late on purpose:

    marks.Enter(ctx, postgres.Tx(tx), "account/alice", claim.Token(), claim.Owner())

Programs use fence.Tx, which does this and more: it reads and writes in one
transaction, lets PostgreSQL end that of a stopped holder, so that the next one
continues, and asks the claim again before it commits.
`

var runs int // of TestStory in this process

// narrate prints the stories in full the first time, and in one line each after that,
// for runs with -test.count.
func narrate(out *os.File, stories []*story) {
	runs++
	p := paint(inColour(out))
	if runs == 1 {
		fmt.Fprint(out, prologue)
	}
	for _, s := range stories {
		switch {
		case s.report.Events == 0:
			fmt.Fprintf(out, "\n%s: did not run to its end\n", s.title())
		case runs == 1:
			t := newTimeline(s)
			t.print(out, p)
			if err := t.draw(); err != nil {
				fmt.Fprintln(out, err)
			}
		default:
			fmt.Fprintf(out, "run %d, %s: %s\n", runs, s.title(), s.brief())
		}
	}
	if runs == 1 {
		fmt.Fprint(out, epilogue)
	}
}

func (s *story) title() string {
	if s.mode == "broken" {
		return s.backend + ", the lock alone"
	}
	return s.backend + ", the lock and the guard"
}

func (s *story) brief() string {
	lost, _ := s.a.find("lost")
	return fmt.Sprintf("balance %d, A's claim ended: %s, violations: %d", s.balance, lost.Cause, s.report.Total)
}

const format = "%8s  %-28s%-28s%s"

func (t *timeline) print(out io.Writer, p painter) {
	title := strings.ToUpper(t.s.title())
	fmt.Fprintf(out, "\n%s\n%s\n", p(strong, title), strings.Repeat("-", len(title)))
	fmt.Fprintf(out, format+"\n", "", "worker A", "worker B", "PostgreSQL")
	for _, r := range t.rows {
		line := fmt.Sprintf(format, fmt.Sprintf("%.3f", r.at.Seconds()), r.cells[laneA], r.cells[laneB], r.cells[database])
		fmt.Fprintln(out, p(r.tone, strings.TrimRight(line, " ")))
	}
	t.conclude(out, p)
}

func (t *timeline) conclude(out io.Writer, p painter) {
	s := t.s
	fmt.Fprintln(out)
	switch {
	case !s.holds:
		fmt.Fprintln(out, p(bad, "This run differs from the story; the test reports why."))
	case s.mode == "broken":
		fmt.Fprintln(out, p(bad, fmt.Sprintf("Both were informed that they have withdrawn, together %d, but the account fell by %d: B's update is lost.",
			amountA+amountB, opening-s.balance)))
	default:
		fmt.Fprintln(out, p(good, fmt.Sprintf("A's late write was refused, and A knows why. The account fell by %d, which is the amount that B got.",
			opening-s.balance)))
	}
	fmt.Fprintf(out, "  tokens   %s\n", t.legend())
	fmt.Fprintf(out, "  checker  %s\n", t.verdict())
	if os.Getenv("STORY_DIR") != "" {
		fmt.Fprintf(out, "  history  %s\n", s.dir)
	}
}

func (t *timeline) legend() string {
	names := make([]string, len(t.tokens))
	for token, n := range t.tokens {
		names[n-1] = fmt.Sprintf("#%d = %d", n, token)
	}
	return strings.Join(names, ", ")
}

// verdict returns the checker's verdict, with short token numbers.
func (t *timeline) verdict() string {
	r := t.s.report
	if r.OK() {
		return fmt.Sprintf("no violation in %d events: %d accesses accepted, %d refused", r.Events, r.Accepted, r.Rejected)
	}
	var lines []string
	for _, v := range r.Violations {
		text := v.Text
		for token := range t.tokens {
			text = strings.ReplaceAll(text, token.String(), t.name(token))
		}
		lines = append(lines, wrap(text, 88)...)
	}
	return strings.Join(lines, "\n           ")
}

// wrap breaks text between words into lines of at most width bytes.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return append(lines, line)
}

// tone is the meaning of a line.
type tone int

const (
	plain tone = iota
	strong
	good
	bad
	fault
)

// painter colours a line, or returns it unchanged.
type painter func(tone, string) string

func paint(coloured bool) painter {
	codes := [...]string{plain: "", strong: "1", good: "32", bad: "31", fault: "33"}
	return func(t tone, s string) string {
		if !coloured || codes[t] == "" {
			return s
		}
		return "\x1b[" + codes[t] + "m" + s + "\x1b[0m"
	}
}

// inColour follows the conventions of NO_COLOR, for none, and CLICOLOR_FORCE, for
// colours through a pipe to a terminal.
func inColour(f *os.File) bool {
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := f.Stat()
	return os.Getenv("CLICOLOR_FORCE") != "" || err == nil && info.Mode()&os.ModeCharDevice != 0
}
