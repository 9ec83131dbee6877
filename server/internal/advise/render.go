package advise

import (
	"fmt"
	"strings"
)

// Markdown is the page docs/explanation/choosing.md.
func (g *Guides) Markdown() string {
	var b strings.Builder
	b.WriteString("# Choosing\n\nThese tables are what `interlock advise` asks and answers. " +
		"They are made from `server/internal/advise/guide.yaml`; change that, and run " +
		"`go test ./server/internal/advise -update`.\n\nIn each guide the first row that fits is the advice.\n\n## The questions\n")
	for _, q := range g.Questions {
		fmt.Fprintf(&b, "\n**%s** (`%s`) %s\n\n", q.Ask, q.ID, q.Why)
		for _, a := range q.Answers {
			fmt.Fprintf(&b, "- `%s`: %s\n", a.ID, a.Says)
		}
	}
	for _, guide := range g.Guides {
		guide.markdown(&b)
	}
	return b.String()
}

func (guide Guide) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n`interlock advise %s`\n\n", guide.Title, guide.ID)
	b.WriteString("| | when | advice | available |\n|---|---|---|---|\n")
	for i, r := range guide.Rows {
		have := "yes"
		if !r.Have {
			have = "not yet"
		}
		fmt.Fprintf(b, "| %d | %s | %s | %s |\n", i+1, r.when(guide.Asks), r.Choose, have)
	}
	for i, r := range guide.Rows {
		fmt.Fprintf(b, "\n### %s %d. %s\n\n%s\n\n- **Risk:** %s\n- **Avoid:** %s\n\n", guide.ID, i+1, r.Choose, r.Reason, r.Risk, r.Avoid)
		for _, c := range r.Checklist {
			fmt.Fprintf(b, "- [ ] %s\n", c)
		}
		fmt.Fprintf(b, "\n```%s\n%s\n```\n", r.Lang, strings.TrimRight(r.Code, "\n"))
	}
}

// when lists the conditions in the order of the questions.
func (r Row) when(asks []string) string {
	var conditions []string
	for _, id := range asks {
		if answers := r.When[id]; len(answers) > 0 {
			conditions = append(conditions, fmt.Sprintf("%s: %s", id, strings.Join(answers, " or ")))
		}
	}
	if len(conditions) == 0 {
		return "otherwise"
	}
	return strings.Join(conditions, "; ")
}

// Text is a row for a terminal.
func (r Row) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n  why     %s\n  risk    %s\n  avoid   %s\n", r.Choose, r.Reason, r.Risk, r.Avoid)
	if !r.Have {
		b.WriteString("\nInterlock does not have this yet. This is how to do it by hand.\n")
	}
	b.WriteString("\nbefore you start:\n")
	for _, c := range r.Checklist {
		fmt.Fprintf(&b, "  [ ] %s\n", c)
	}
	b.WriteString("\n")
	for line := range strings.Lines(strings.TrimRight(r.Code, "\n")) {
		b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
