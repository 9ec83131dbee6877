package picture

import (
	"fmt"
	"math"
)

// A Chart shows figures as bars on a logarithmic scale.
type Chart struct {
	Title string
	Bars  []Bar
}

// A Bar is one figure. Value is above 0, Text is how it is written.
type Bar struct {
	Name  string
	Value float64
	Text  string
}

// SVG draws the chart.
func (c Chart) SVG() string {
	const names, width = 160, 460
	low, high := math.Inf(1), 0.0
	for _, b := range c.Bars {
		low, high = min(low, b.Value), max(high, b.Value)
	}
	low /= 3 // so that the shortest bar is to be seen
	var out canvas
	out.text("head", 10, 24, c.Title)
	alt := ""
	for i, b := range c.Bars {
		y := 40 + i*26
		length := int(width * math.Log(b.Value/low) / math.Log(high/low))
		out.text("", 10, y+14, b.Name)
		out.rect("bar", names, y, length, 18)
		out.text("", names+length+8, y+14, b.Text)
		alt += fmt.Sprintf("%s: %s. ", b.Name, b.Text)
	}
	return out.finish(names+width+90, 50+len(c.Bars)*26, c.Title, alt)
}

// Decisions shows a list of rules, of which the first one that fits is taken.
type Decisions struct {
	Title string
	Rules []Rule
}

// A Rule is what to do under a condition. An empty condition always fits.
type Rule struct{ When, Then string }

// SVG draws the decisions.
func (d Decisions) SVG() string {
	const box, gap = 430, 40
	var c canvas
	c.text("head", 10, 24, d.Title)
	y, alt := 40, ""
	for i, rule := range d.Rules {
		when := rule.When
		if when == "" {
			when = "otherwise"
		}
		height := max(len(wrap(when, box-20)), len(wrap(rule.Then, box-20)))*line + 12
		c.rect("box", 10, y, box, height)
		c.lines("dim", 20, y+18, box-20, when)
		fmt.Fprintf(&c, `<path class="arrow" d="M%d %dh%dl-5 -4m5 4l-5 4"/>`+"\n", 10+box, y+height/2, gap-4)
		c.rect("box", 10+box+gap, y, box, height)
		c.lines("head", 20+box+gap, y+18, box-20, rule.Then)
		if i < len(d.Rules)-1 {
			fmt.Fprintf(&c, `<path class="arrow" d="M%d %dv%dl-4 -5m4 5l4 -5"/>`+"\n", 40, y+height, 14)
			c.text("dim", 50, y+height+13, "no")
		}
		y += height + 18
		alt += "If " + when + ": " + rule.Then + ". "
	}
	return c.finish(2*box+gap+20, y, d.Title, alt)
}
