package threepc

import (
	"fmt"
	"slices"
)

// path is the schedule that leads to a world, a line for each step; nil for none.
func (x *search) path(at int32) (lines []string) {
	for ; at >= 0; at = x.nodes[at].parent {
		n := x.nodes[at]
		before := world{}
		if n.parent >= 0 {
			before = x.nodes[n.parent].world
		}
		lines = append(lines, x.line(n.choice, &before, &n.world))
	}
	slices.Reverse(lines)
	return lines
}

// line says what a choice did.
func (x *search) line(c choice, before, after *world) string {
	sh := x.shape()
	me := c.actor()
	text := ""
	switch c.kind {
	case begins:
		text = "C begins"
	case delivers:
		text = fmt.Sprintf("%s receives %s from %s", sh.name(me), c.message.kind, sh.name(c.message.from))
	case suspects:
		text = fmt.Sprintf("%s hears nothing from %s", sh.name(me), sh.name(c.of))
	case crashes:
		return sh.name(me) + " crashes"
	case restarts:
		text = sh.name(me) + " crashes and restarts"
	case cuts:
		rest := set(1<<sh.sites()-1) &^ c.side
		return fmt.Sprintf("the network falls apart: %s | %s", sh.names(rest), sh.names(c.side))
	}
	if is, was := after.sites[me].phase, before.sites[me].phase; is != was {
		text += ", is " + is.String()
	}
	_, sent := x.after(*before, c)
	return text + telling(sh, c, sent)
}

// telling says what a site sends, and where it crashes in doing so.
func telling(sh shape, c choice, sent []message) (text string) {
	to := map[kind]set{}
	var order []kind
	for _, a := range sent {
		if c.crashes && !c.told.has(a.to) || a.kind == done {
			continue
		}
		if to[a.kind] == 0 {
			order = append(order, a.kind)
		}
		to[a.kind] |= only(a.to)
	}
	for _, k := range order {
		text += fmt.Sprintf(", sends %s to %s", k, sh.names(to[k]))
	}
	if c.crashes {
		text += ", and crashes"
	}
	return text
}
