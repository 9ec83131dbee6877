package advise

import (
	"fmt"
	"strings"
)

// Markdown returns the page docs/explanation/choosing.md. Only the command prints the checklist
// and the code of a row.
func (g *Guides) Markdown() string {
	var b strings.Builder
	b.WriteString("# Choosing\n\n<!-- Written by: go test ./server/internal/advise -update -->\n\n" +
		"Which mechanism, backend and protocol fits? Answer the questions of a guide. The first row that fits is the advice.\n" +
		"The command asks the same questions, and adds a checklist and code:\n\n```sh\ninterlock advise mechanism\n```\n")
	for _, guide := range g.Guides {
		guide.markdown(&b)
	}
	b.WriteString("\n## The questions\n")
	for _, q := range g.Questions {
		fmt.Fprintf(&b, "\n**%s** (`%s`) %s\n\n", q.Ask, q.ID, q.Why)
		for _, a := range q.Answers {
			fmt.Fprintf(&b, "- `%s`: %s\n", a.ID, a.Says)
		}
	}
	return b.String()
}

func (guide Guide) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n`interlock advise %s`\n\n| | when | advice |\n|---|---|---|\n", guide.Title, guide.ID)
	for i, r := range guide.Rows {
		fmt.Fprintf(b, "| %d | %s | %s |\n", i+1, r.when(guide.Asks), r.Choose)
	}
	b.WriteString("\n")
	for i, r := range guide.Rows {
		fmt.Fprintf(b, "%d. **%s.** %s *Risk:* %s *Avoid:* %s\n", i+1, r.Choose, r.Reason, r.Risk, r.Avoid)
	}
}

// when returns the conditions in the order of the questions.
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

// Text returns a row for a terminal.
func (r Row) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n  why     %s\n  risk    %s\n  avoid   %s\n", r.Choose, r.Reason, r.Risk, r.Avoid)
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
