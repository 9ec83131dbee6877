package advise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ErrQuit is returned by Ask when the user or the input ends.
var ErrQuit = errors.New("ended without an answer")

// Ask asks the questions of a guide that have no answer yet, one by one, and stores the
// answers. An answer is a number or an id; "why" explains the question, "back" returns to
// the one before.
func (g *Guides) Ask(guide Guide, answers map[string]string, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	var open []Question
	for _, id := range guide.Asks {
		if q, _ := g.Question(id); answers[id] == "" {
			open = append(open, q)
		}
	}
	for i := 0; i < len(open); {
		step, err := ask(open[i], answers, lines, out)
		if err != nil {
			return err
		}
		i = max(0, i+step)
	}
	return nil
}

// ask asks one question once, and returns the number of questions to move by.
func ask(q Question, answers map[string]string, lines *bufio.Scanner, out io.Writer) (step int, err error) {
	fmt.Fprintf(out, "\n%s\n", q.Ask)
	for i, a := range q.Answers {
		fmt.Fprintf(out, "  %2d  %s\n", i+1, a.Says)
	}
	for {
		fmt.Fprintf(out, "1-%d, back, why, quit: ", len(q.Answers))
		if !lines.Scan() {
			return 0, errors.Join(ErrQuit, lines.Err())
		}
		word := strings.ToLower(strings.TrimSpace(lines.Text()))
		switch word {
		case "why":
			fmt.Fprintf(out, "%s\n", q.Why)
			continue
		case "back":
			return -1, nil
		case "quit":
			return 0, ErrQuit
		}
		if n, err := strconv.Atoi(word); err == nil && n >= 1 && n <= len(q.Answers) {
			word = q.Answers[n-1].ID
		}
		if q.Has(word) {
			answers[q.ID] = word
			return 1, nil
		}
	}
}
