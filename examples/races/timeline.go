package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/interlock-dev/interlock/history"
)

// timeline formats a history for people: a line for each event, with its time, actor
// and text.
func timeline(events []history.Event) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, e := range events {
		at := time.Duration(e.Mono - events[0].Mono)
		fmt.Fprintf(w, "  %.1f ms\t%s\t%s\n", float64(at.Microseconds())/1000, e.Lane, told(e))
	}
	w.Flush()
	return b.String()
}

// told describes an event.
func told(e history.Event) string {
	switch e.Kind {
	case history.Invoke:
		return "starts: " + words(e, e.Value)
	case history.OK:
		return "  ok: " + words(e, e.Value)
	case history.Reject:
		return "  REJECTED: " + words(e, "") + because(e.Value)
	case history.Fail:
		return "  failed: " + words(e, "") + because(e.Value)
	case history.Info:
		return "  unknown: " + words(e, "") + because(e.Value)
	case history.State:
		if e.Op == opObserves {
			return "  observes: " + e.Value
		}
		return "state: " + words(e, e.Value)
	}
	return string(e.Kind) + ": " + words(e, e.Value)
}

// words returns the object of an event: "add 30 (account)".
func words(e history.Event, value string) string {
	said := []string{e.Op, e.ID}
	switch {
	case e.Op == history.OpVersion:
		said = append(said, fmt.Sprint(e.Stamp))
	case e.Stamp != 0 && e.Amount == 0:
		said = append(said, fmt.Sprintf("version %d", e.Stamp))
	case e.Amount != 0 || e.Op == history.OpTotal:
		said = append(said, fmt.Sprint(e.Amount))
	}
	said = append(said, value)
	if e.Key != "" {
		said = append(said, "("+e.Key+")")
	}
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), " ")
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ", because " + why
}
