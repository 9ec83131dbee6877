package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/interlock-dev/interlock/server/internal/advise"
)

// defaultGuide is the guide of calls that name none.
const defaultGuide = "mechanism"

func (a *app) adviseCommand() *cobra.Command {
	var given []string
	var list bool
	c := &cobra.Command{
		Use: "advise [GUIDE]", Short: "Recommend a lock, a backend or a remedy",
		Long: `Asks questions and prints a recommendation: what to choose, why, the risk, when to
avoid it, what to check, and a few lines of code. Without a terminal, answer by
--answer. docs/explanation/choosing.md shows the same tables.`,
		Example: `  interlock advise                               asks; starts with what must never happen
  interlock advise --list                        the guides, and what each asks
  interlock advise race --answer race=late-writer
  interlock advise backend -o json --answer invariant=overwrite \
      --answer running=postgres --answer need=pooler`,
		Args: atMostOne("guide"),
		RunE: func(c *cobra.Command, args []string) error {
			guides, err := advise.Load()
			if err != nil {
				return fail(exitBug, "%w", err)
			}
			if list {
				return a.listGuides(guides)
			}
			return a.advise(guides, append(args, defaultGuide)[0], given)
		},
	}
	c.Flags().StringArrayVar(&given, "answer", nil, "answer a question in advance: `QUESTION=ANSWER`; may be repeated")
	c.Flags().BoolVar(&list, "list", false, "show the guides, their questions and the answers")
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return guideNames(), cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

func guideNames() (names []string) {
	guides, err := advise.Load()
	if err != nil {
		return nil
	}
	for _, g := range guides.Guides {
		names = append(names, g.ID)
	}
	return names
}

// advise asks the open questions, and prints the advice.
func (a *app) advise(guides *advise.Guides, id string, given []string) error {
	guide, ok := guides.Guide(id)
	if !ok {
		return usage("there is no guide %q; there are: %s", id, strings.Join(guideNames(), ", "))
	}
	answers, err := parseAnswers(guides, guide, given)
	if err != nil {
		return err
	}
	if missing := unanswered(guide, answers); len(missing) > 0 {
		if !term.IsTerminal(int(a.in.Fd())) {
			return usage("%s", howToAnswer(guides, missing))
		}
		if err := guides.Ask(guide, answers, a.in, a.err); errors.Is(err, advise.ErrQuit) {
			return fail(exitFailed, "%w", err)
		} else if err != nil {
			return fail(exitFailed, "read the answer: %w", err)
		}
		a.say("the same again: %s\n", command(append([]string{a.program, "advise", guide.ID}, asFlags(guide, answers)...)...))
	}
	row, ok := guide.Choose(answers)
	if !ok {
		return fail(exitBug, "no row of the guide %s fits %v", guide.ID, answers)
	}
	return a.print(struct {
		Guide   string            `json:"guide"`
		Answers map[string]string `json:"answers"`
		advise.Row
	}{guide.ID, answers, row}, lines(row.Text()))
}

func parseAnswers(guides *advise.Guides, guide advise.Guide, given []string) (map[string]string, error) {
	answers := map[string]string{}
	for _, pair := range given {
		id, answer, ok := strings.Cut(pair, "=")
		q, known := guides.Question(id)
		switch {
		case !ok:
			return nil, usage("--answer %q is not QUESTION=ANSWER", pair)
		case !known || !slices.Contains(guide.Asks, id):
			return nil, usage("the guide %s does not ask %q; it asks: %s", guide.ID, id, strings.Join(guide.Asks, ", "))
		case !q.Has(answer):
			return nil, usage("%q is no answer to %s; there are: %s", answer, id, strings.Join(q.IDs(), ", "))
		}
		answers[id] = answer
	}
	return answers, nil
}

func unanswered(guide advise.Guide, answers map[string]string) (missing []string) {
	for _, id := range guide.Asks {
		if answers[id] == "" {
			missing = append(missing, id)
		}
	}
	return missing
}

// howToAnswer lists the missing answers for use without a terminal.
func howToAnswer(guides *advise.Guides, missing []string) text {
	var t text = "no terminal to ask on, and these are not answered:"
	for _, id := range missing {
		q, _ := guides.Question(id)
		t += line("\n  --answer %s=%s   %s", id, strings.Join(q.IDs(), "|"), q.Ask)
	}
	return t
}

func asFlags(guide advise.Guide, answers map[string]string) (flags []string) {
	for _, id := range guide.Asks {
		flags = append(flags, "--answer", id+"="+answers[id])
	}
	return flags
}

// listGuides lists the guides and questions.
func (a *app) listGuides(guides *advise.Guides) error {
	type view struct {
		Guide   string              `json:"guide"`
		Title   string              `json:"title"`
		Asks    []string            `json:"asks"`
		Answers map[string][]string `json:"answers"`
	}
	var views []view
	rows := [][]string{{"GUIDE", "ABOUT", "ASKS"}}
	for _, g := range guides.Guides {
		v := view{g.ID, g.Title, g.Asks, map[string][]string{}}
		for _, id := range g.Asks {
			q, _ := guides.Question(id)
			v.Answers[id] = q.IDs()
		}
		views = append(views, v)
		rows = append(rows, []string{g.ID, g.Title, strings.Join(g.Asks, ", ")})
	}
	t := table(rows) + "\nanswers:\n"
	for _, q := range guides.Questions {
		t += line("  %s=%s\n", q.ID, strings.Join(q.IDs(), "|"))
	}
	return a.print(views, t)
}
