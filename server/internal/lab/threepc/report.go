package threepc

import (
	"fmt"
	"strings"
	"time"
)

// String returns the report in Markdown, with its conclusions.
func (r *Report) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# Two-phase commit, three-phase commit, and a register\n")
	say("A transaction over several sites ends in the same way at each of them. This page compares three")
	say("protocols for that, in a simulation whose results are the same in every run.")
	say("**2PC** is two-phase commit with presumed abort, whose participants also ask each other.")
	say("**3PC** is three-phase commit with the termination protocol: the remaining sites ask each other and decide.")
	say("**2PC + register** keeps the decision in a register that a majority stores: the first offer counts.\n")
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
	say("If the register is the coordinator's own journal, the two messages are not needed. Its write replaces the")
	say("coordinator's own, and costs a write to a majority instead of one to a disk.\n")
}

func (r *Report) sayCrashes(say sayer) {
	say("## When sites crash\n")
	say("Delays are bounded, no message is lost, and each of %d participants votes yes. The coordinator", r.Participants)
	say("crashes before each message that it sends or receives, or any two sites do, before any of theirs in the first thirty delays.")
	say("A site *blocks* if it runs, and has not decided when the run ends. The wait is from a vote of yes to the decision.\n")
	say("| crash | protocol | points | a site blocks | decided both ways | longest wait, if no site blocks | longest wait, if the site is back after %v |", BackAfter)
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
		say("\nThe coordinator's actions are %d prepares, %d votes, %d decisions and %d that they are done. With %v all sites wait if it", r.Participants, r.Participants, r.Participants, r.Participants, TwoPhase)
		say("crashes before number %d to %d: from the last vote until the first participant has the decision and can pass it on.", at[0], at[len(at)-1])
	}
	say("\nIt has all votes, and crashes before it sends the decision. With %v the participants wait for it:\n", TwoPhase)
	sayLog(say, r.Blocking, 18)
	say("\nWith %v they find out that no site can have committed:\n", ThreePhase)
	sayLog(say, r.Deciding, 60)
	say("")
}

// sayLog writes a log, and an excerpt of a longer one.
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
	say("%d participants, random delays, one run in eight with a vote of no. A partition lasts %v, sixty delays.\n", r.Participants, 60*delay)
	say("| fault | protocol | runs | committed | a site blocks | decided both ways | longest wait |")
	say("|---|---|---|---|---|---|---|")
	for _, f := range r.Faults {
		say("| %s | %v | %d | %d | %d | %s | %s |", f.Fault, f.Protocol, f.Runs, f.Committed, f.Blocked, alarm(f.Split), show(f.Waited))
	}
	say("")
}

func (r *Report) sayModels(say sayer) {
	say("## Every schedule of small worlds\n")
	say("Every order of deliveries, every vote, every fault at every moment, also in the middle of what a site sends.")
	say("*Synchronous*: a site is suspected only if it crashed or is partitioned. *Asynchronous*: messages are delayed for")
	say("any time, lost, repeated and reordered, any site may be suspected at any moment, and sites crash and restart.\n")
	say("| protocol | participants | network | crashes | partition | states | decided both ways | a site can block |")
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
		{"The shortest way in which slowness splits 3PC", Model{Protocol: ThreePhase, Participants: 2, Asynchronous: true}, func(x *Exploration) []string { return x.Split }},
		{"The shortest way in which the register makes a site wait", Model{Protocol: Register, Participants: 3, Partition: true}, func(x *Exploration) []string { return x.Blocked }},
	} {
		say("### %s\n", s.title)
		for i, line := range s.of(r.model(s.model)) {
			say("%d. %s", i+1, line)
		}
		say("")
	}
}

func (r *Report) sayMeaning(say sayer) {
	say("## What follows\n")
	say("- 2PC never decides both ways, whatever the network does. A participant that has voted yes may have to wait")
	say("  for its coordinator: neither decision is safe while the only site that may know it does not answer.")
	say("- 3PC lets the remaining sites decide, at the cost of a third phase: half as many messages again, two delays more. That is right")
	say("  only while a site that does not answer in time has crashed. Under a partition, or if the network is")
	say("  slow, the two sides may decide differently, and nothing detects that. 2PC would have waited.")
	say("- 2PC blocks because one place keeps the decision, not because of its number of phases. Suppose that a")
	say("  majority stores the decision in a register. Then a site that cannot reach the coordinator offers to abort,")
	say("  and accepts the first decision. It waits only while it cannot reach a majority. The coordinator's crash")
	say("  blocks no site.")
	say("  Package `txn/twopc` does that with its journal on etcd: the first decision is stored, and any")
	say("  instance finishes it. Interlock does not offer 3PC.")
}

// show returns a time for a table; a dash for none.
func show(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return d.Round(time.Millisecond).String()
}

// alarm returns a number that should be 0, in bold if it is not.
func alarm(n int) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("**%d**", n)
}

// A Report is the result of a comparison. Its String is Markdown with explanations.
type Report struct {
	Participants int            `json:"participants"`
	Costs        []Cost         `json:"costs"`
	Crashes      []CrashPoints  `json:"crashes"` // of the coordinator, then of every two sites
	Faults       []Faults       `json:"faults"`
	Models       []*Exploration `json:"models"`
	// Blocking is the log of a run of two-phase commit whose coordinator crashes with
	// all votes; Deciding is that of three-phase commit.
	Blocking []string `json:"blocking"`
	Deciding []string `json:"deciding"`
}

// Cost is the cost of a run without faults, in which each message takes one delay.
type Cost struct {
	Protocol     Protocol `json:"protocol"`
	Participants int      `json:"participants"`
	Messages     int      `json:"messages"`
	Writes       int      `json:"writes"`  // before a message
	Decided      int      `json:"decided"` // delays until the first site decides, which can answer the caller
	Known        int      `json:"known"`   // delays until all decide
}

// Compare compares all protocols: costs, a crash at each step, random faults, and every
// schedule of small models. It computes for some seconds, and always gives the same report.
func Compare() *Report {
	r := &Report{Participants: 3}
	r.costs()
	r.crashes()
	r.faults()
	for _, m := range models {
		r.Models = append(r.Models, Explore(m))
	}
	r.logs()
	return r
}

func (r *Report) costs() {
	for _, p := range Protocols {
		for n := 1; n <= maxSites-2; n++ {
			run := Simulate(Scenario{Protocol: p, Participants: n, Steady: true})
			c := Cost{Protocol: p, Participants: n, Messages: run.Messages, Writes: run.Writes}
			for i, f := range run.Fates {
				at := int(f.At / delay)
				if c.Known = max(c.Known, at); i == 0 || at < c.Decided {
					c.Decided = at
				}
			}
			r.Costs = append(r.Costs, c)
		}
	}
}
