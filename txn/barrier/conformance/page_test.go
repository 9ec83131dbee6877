package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// TestPageIsWhatTheKitExpects: the page is generated from the kit's tables.
func TestPageIsWhatTheKitExpects(t *testing.T) {
	generated.Check(t, "../../../docs/reference/conformance.md", written())
}

// TestSequencesAreAll: the counts match combinatorics, and none is repeated.
func TestSequencesAreAll(t *testing.T) {
	for p, want := range map[Protocol][]int{TCC: {0, 3, 8, 18, 30, 30}, Saga: {0, 2, 4, 6, 6}} {
		seen := map[string]bool{}
		lengths := make([]int, len(want))
		for _, s := range p.sequences() {
			if seen[fmt.Sprint(s)] {
				t.Errorf("%s: %v occurs twice", p, s)
			}
			seen[fmt.Sprint(s)] = true
			if len(s) >= len(want) {
				t.Fatalf("%s: %v is too long", p, s)
			}
			lengths[len(s)]++
		}
		if fmt.Sprint(lengths) != fmt.Sprint(want) {
			t.Errorf("%s: %v sequences by length, want %v", p, lengths, want)
		}
	}
}

func written() string {
	var b strings.Builder
	b.WriteString(preface)
	b.WriteString("\n## What each message is answered\n\n")
	b.WriteString("| the branch is | do, try, prepare | confirm, commit | undo, cancel, rollback |\n|---|---|---|---|\n")
	for s := range states {
		fmt.Fprintf(&b, "| %s |", s)
		for _, e := range table[s] {
			fmt.Fprintf(&b, " %s → %s |", e.answer, e.next)
		}
		b.WriteString("\n")
	}
	b.WriteString(afterTable)
	for _, p := range []Protocol{TCC, Saga} {
		fmt.Fprintf(&b, "\n## Every sequence: %s\n\n", p)
		b.WriteString("| messages | answers, with what is held and confirmed after each |\n|---|---|\n")
		for _, c := range p.plays(0) {
			if c.name == "" && !c.twice {
				writeRow(&b, c)
			}
		}
	}
	b.WriteString(business)
	writeMore(&b)
	return b.String()
}

// writeMore writes the other plays, which are the same for all protocols.
func writeMore(b *strings.Builder) {
	for _, c := range TCC.scenes() {
		fmt.Fprintf(b, "\n**%s** (capacity %d)\n\n| message | branch, step | answer | held | confirmed |\n|---|---|---|---|---|\n", c.name, c.capacity)
		m := newModel(TCC, c.capacity)
		for _, msg := range c.script {
			var said answer
			said, m = m.with(msg)
			fmt.Fprintf(b, "| %s%s | %s | %s | %d | %d |\n", operations[TCC][msg.kind], [...]string{"", ", amount 2", ", late", ", no header"}[msg.as],
				strings.TrimSuffix(msg.to.branch+", "+msg.to.step, ", "), said, m.effects().Held, m.effects().Confirmed)
		}
	}
	b.WriteString(pairs)
	for _, c := range TCC.pairs() {
		fmt.Fprintf(b, "| %s | %s |\n", names(TCC, c.script), names(TCC, c.pair))
	}
}

func writeRow(b *strings.Builder, c play) {
	var answers []string
	m := newModel(c.protocol, c.capacity)
	for _, msg := range c.script {
		var said answer
		said, m = m.with(msg)
		answers = append(answers, fmt.Sprintf("%s %d/%d", said, m.effects().Held, m.effects().Confirmed))
	}
	fmt.Fprintf(b, "| %s | %s |\n", names(c.protocol, c.script), strings.Join(answers, ", "))
}

func names(p Protocol, messages []message) string {
	var all []string
	for _, m := range messages {
		all = append(all, string(operations[p][m.kind]))
	}
	return strings.Join(all, ", ")
}

const preface = `# What a participant answers

<!-- Made from txn/barrier/conformance: go test ./txn/barrier/conformance -run TestPage -update -->

A coordinator delivers each message at least once, and perhaps late: after a later one, or after its sender has
crashed. This page states what a participant in any language must answer, so that no effect happens twice or after its undo.
` + "`interlock conformance URL`" + ` plays all of it and checks answers and effects.
[ADR 30](../adr/030-http-branches.md) has the reasons.

## The wire

A message is a POST with these headers. Names are percent-encoded UTF-8; numbers are decimal and above 0; times are
milliseconds since 1970.

| header | |
|---|---|
| ` + "`" + branchhttp.HeaderTransaction + "`" + ` | its id, 1 to 200 bytes |
| ` + "`" + branchhttp.HeaderBranch + "`" + ` | its branch, 1 to 255 bytes |
| ` + "`" + branchhttp.HeaderStep + "`" + ` | of the branch, at most 255 bytes; only if there is one |
| ` + "`" + branchhttp.HeaderOperation + "`" + ` | do, undo; try, confirm, cancel; prepare, commit, rollback |
| ` + "`" + branchhttp.HeaderAttempt + "`" + ` | from 1; a repeated message has the next number |
| ` + "`" + branchhttp.HeaderEpoch + "`" + ` | the coordinator's fencing token, for resources with a guard; only if there is one |
| ` + "`" + branchhttp.HeaderBegun + "`" + ` | when the transaction began |
| ` + "`" + branchhttp.HeaderDeadline + "`" + ` | after that the coordinator does not wait for the answer; only if there is one |
| ` + "`" + branchhttp.HeaderUntil + "`" + ` | how long a try has to hold; only with a try |

Transaction, branch and step name the row that the participant keeps, written in the same local transaction as its business.
The body is the input, at most 4 MiB.

| answer | means |
|---|---|
| 2xx | done, now or before. The body is the output, JSON or empty, at most 1 MiB |
| 409 | refused: it did not happen, and never will. The body is the reason |
| 425 | in progress; repeat after ` + "`Retry-After`" + ` seconds |
| anything else | outcome unknown: the message is repeated, after a 429 or 503 no earlier than its ` + "`Retry-After`" + `, up to the policy's longest pause |

Only 409 is a promise. Answer 400 to a message that cannot be parsed, and 408 to one that arrives after its deadline.
`

const afterTable = `
*done* is 2xx, *refused* 409, *not done* anything but 2xx, best 409: there are two different decisions, and an operator has to
act. The new state of the branch follows the arrow. In addition:

- If the business refuses a first message (do, try, prepare), the answer is 409 and the branch is *refused* permanently. This holds
  even if the business would accept it later.
- A repeated first message gets the first output. With another input it is not done: best answered 422 with the header
  ` + "`Interlock-Input: other`" + `, which tells the coordinator that an operator's edit came too late.
- Only a message that changes the state of the branch runs business code.
- Check the barrier before the business: an account that is full because of this branch is no reason to refuse.

## The business that is tested

` + "`interlock conformance`" + ` tests a participant that keeps accounts, and creates each when a message first names it. The body of every
message, also of one that undoes, is ` + "`" + `{"account": "a name", "amount": 1, "capacity": 1}` + "`" + `.

- A try, prepare or do is refused if held, confirmed and the amount together exceed the capacity.
- A try or prepare holds the amount, a confirm or commit confirms it, and a cancel or rollback releases it. A do confirms at once,
  and an undo reverses that.
- The output of a try, prepare or do differs each time, such as ` + "`" + `{"hold": "a random number"}` + "`" + `, to show that a repeated message gets the first one.
- A GET of the same address, or of ` + "`--inspect URL`" + `, with ` + "`?account=NAME`" + ` is answered ` + "`" + `{"held": 0, "confirmed": 1}` + "`" + `; zeros for an unknown account.
`

const business = `
## More plays

They are shown for TCC, and are the same for the others. Each is about one account, whose capacity is in the input, with
the amount, which is 1 unless it says otherwise. *unheard* is an answer that is neither 2xx nor 409, since the message may come again
as it should be.
`

const pairs = `
## Two at once

Sent together, ten times each. Both answers and the effects have to be as if one had come after the other, in either order.
A message that is answered 425 or 5xx here is sent again.

| before | at once |
|---|---|
`
