package threepc

import (
	"fmt"
	"strings"
	"time"
)

// String is the report in Markdown, with what follows from it.
func (r *Report) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# Two-phase commit, three-phase commit, and a register\n")
	say("A transaction over several sites ends alike at all of them. Three protocols for that are")
	say("played here against each other, in a world that is made up and the same in every run.")
	say("**2PC** is two-phase commit with presumed abort, whose participants also ask each other.")
	say("**3PC** is three-phase commit with the termination protocol: who is left asks the others and decides.")
	say("**2PC + register** makes the first decision count that anybody offers to a register which a majority keeps.\n")
	r.sayCosts(say)
	r.sayCrashes(say)
	r.sayFaults(say)
	r.sayModels(say)
	r.saySchedules(say)
	r.sayMeaning(say)
	return b.String()
}

type sayer = func(format string, args ...any)

func (r *Report) sayCosts(say sayer) {
	say("## What it costs when nothing fails\n")
	say("Each message takes one delay. The caller can get the outcome when the first site has decided.\n")
	say("| n participants | %v | %v | %v |", Protocols[0], Protocols[1], Protocols[2])
	say("|---|---|---|---|")
	rows := len(r.Costs) / len(Protocols)
	for n := range rows {
		row := fmt.Sprintf("| %d |", r.Costs[n].Participants)
		for p := range Protocols {
			c := r.Costs[p*rows+n]
			row += fmt.Sprintf(" %d messages, %d writes |", c.Messages, c.Writes)
		}
		say("%s", row)
	}
	of := func(p int, value func(Cost) int) int { return value(r.Costs[p*rows]) }
	decided, known := func(c Cost) int { return c.Decided }, func(c Cost) int { return c.Known }
	say("| messages | 4n: prepare, vote, commit, done | 6n: prepare, vote, pre-commit, ack, commit, done | 4n + 2: an offer and its answer |")
	say("| delays until the first has decided | %d | %d | %d |", of(0, decided), of(1, decided), of(2, decided))
	say("| delays until all have | %d | %d | %d |\n", of(0, known), of(1, known), of(2, known))
	say("A register that is the coordinator's own journal answers without the two messages: its write takes the")
	say("place of the coordinator's, and costs what a write to a majority costs more than one to a disk.\n")
}

func (r *Report) sayCrashes(say sayer) {
	say("## When sites crash\n")
	say("Delays are bounded, no message is lost, and each of %d participants votes yes. The coordinator", r.Participants)
	say("crashes in front of each message that it sends or receives, or any two sites do, in front of any of theirs in the first thirty delays.")
	say("A site *blocks* if it lives, and has not decided when the run ends. The wait is from a vote of yes to the decision.\n")
	say("| crash | protocol | points | somebody blocks | decided both ways | longest wait, if nobody blocks | longest wait, if the site is back after %v |", BackAfter)
	say("|---|---|---|---|---|---|---|")
	for _, c := range r.Crashes {
		who, back := "the coordinator", "–"
		if c.Sites > 1 {
			who = "any two sites"
		} else if c.Back > 0 {
			back = show(c.Back)
		}
		say("| %s | %v | %d | %d | %d | %s | %s |", who, c.Protocol, c.Points, c.Blocked, c.Split, show(c.Waited), back)
	}
	if at := r.Crashes[0].At; len(at) > 0 {
		say("\nThe coordinator's actions are %d prepares, %d votes, %d decisions and %d that they are done. With %v everybody waits if it", r.Participants, r.Participants, r.Participants, r.Participants, TwoPhase)
		say("crashes in front of number %d to %d: from when all have voted until the first one has the decision, and can pass it on.", at[0], at[len(at)-1])
	}
	say("\nIt has all votes, and crashes before it tells anybody. With %v the participants wait for it:\n", TwoPhase)
	sayLog(say, r.Blocking, 18)
	say("\nWith %v they know after a while that nobody can have committed:\n", ThreePhase)
	sayLog(say, r.Deciding, 60)
	say("")
}

// sayLog shows a log, and of a longer one how it goes on.
func sayLog(say sayer, lines []string, most int) {
	for i, line := range lines {
		if i == most {
			say("    … and so on")
			return
		}
		say("    %s", line)
	}
}

func (r *Report) sayFaults(say sayer) {
	say("## When anything may happen\n")
	say("%d participants, random delays, one run in eight with a vote of no. A partition lasts %v, sixty delays.\n", r.Participants, 60*defaultDelay)
	say("| fault | protocol | runs | committed | somebody blocks | decided both ways | longest wait |")
	say("|---|---|---|---|---|---|---|")
	for _, f := range r.Faults {
		say("| %s | %v | %d | %d | %d | %s | %s |", f.Fault, f.Protocol, f.Runs, f.Committed, f.Blocked, alarm(f.Split), show(f.Waited))
	}
	say("")
}

func (r *Report) sayModels(say sayer) {
	say("## Every schedule of small worlds\n")
	say("Every order of deliveries, every vote, every fault at every moment, also in the middle of what a site sends.")
	say("*Synchronous*: a site is taken for crashed only if it is, or is cut off. *Asynchronous*: messages are delayed for")
	say("any time, lost, repeated and overtaken, anybody may be taken for crashed at any moment, and sites crash and restart.\n")
	say("| protocol | participants | network | crashes | partition | states | decided both ways | somebody can block |")
	say("|---|---|---|---|---|---|---|---|")
	for _, x := range r.Models {
		network, blocked, partition := "synchronous", "never", "none"
		if x.Model.Partition {
			partition = "one"
		}
		switch {
		case x.Model.Asynchronous:
			network, blocked = "asynchronous", "not asked"
		case x.Blocked != nil:
			blocked = "yes: " + x.Waiting
		}
		split := "never"
		if x.Split != nil {
			split = "**yes**"
		}
		say("| %v | %d | %s | up to %d | %s | %d | %s | %s |", x.Model.Protocol, x.Model.Participants, network, x.Model.Crashes, partition, x.Worlds, split, blocked)
	}
	say("")
}

func (r *Report) saySchedules(say sayer) {
	for _, s := range []struct {
		title string
		model Model
		of    func(*Exploration) []string
	}{
		{"The shortest way in which 2PC blocks", Model{Protocol: TwoPhase, Participants: 2, Crashes: 1}, func(x *Exploration) []string { return x.Blocked }},
		{"The shortest way in which a partition splits 3PC", Model{Protocol: ThreePhase, Participants: 2, Partition: true}, func(x *Exploration) []string { return x.Split }},
		{"The same with three participants", Model{Protocol: ThreePhase, Participants: 3, Partition: true}, func(x *Exploration) []string { return x.Split }},
		{"The shortest way in which mere slowness splits 3PC", Model{Protocol: ThreePhase, Participants: 2, Asynchronous: true}, func(x *Exploration) []string { return x.Split }},
		{"The shortest way in which the register makes somebody wait", Model{Protocol: Register, Participants: 3, Partition: true}, func(x *Exploration) []string { return x.Blocked }},
	} {
		x := r.model(s.model)
		if x == nil || s.of(x) == nil {
			continue
		}
		say("### %s\n", s.title)
		for i, line := range s.of(x) {
			say("%d. %s", i+1, line)
		}
		say("")
	}
}

func (r *Report) sayMeaning(say sayer) {
	say("## What follows\n")
	say("- 2PC never decides both ways, whatever the network does. A participant that has voted yes may have to wait")
	say("  for its coordinator, because neither decision is safe while the only one who may know does not answer.")
	say("- 3PC lets those who are left decide, at the price of a third phase: half as many messages again, two delays more. That is right")
	say("  only while a site that does not answer in time has crashed. On a network that can fall apart, or is just")
	say("  slow, the two sides finish the transaction each in its own way, and nothing finds out. 2PC would have waited.")
	say("- What blocks 2PC is not its number of phases. It is that the decision is kept in one place. With the decision")
	say("  in a register that a majority keeps, who cannot hear the coordinator offers to abort, takes whatever")
	say("  was decided first, and waits only while it is cut off from that majority. The coordinator's death stops nobody.")
	say("  Package `txn/twopc` does that with its journal on etcd: the decision is put there if there is none, and any")
	say("  instance finishes it. 3PC is shown here, and not offered.")
}

// show is a time in a table; none is a dash.
func show(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return d.Round(time.Millisecond).String()
}

// alarm is a number that ought to be 0.
func alarm(n int) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("**%d**", n)
}
