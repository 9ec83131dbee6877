// Command mutants plants one wrong line at a time, or deletes one statement, and
// expects the tests to notice. It proves nothing about lines that are not in its list.
//
//	mutants [-run REGEXP] [-list] FILE…
//
// Each FILE lists mutants; planted/lock.txt explains the form, deletions/coordinator.txt
// that of files of which each statement is deleted in turn. What does not build without
// a statement says nothing about the tests, and does not count. The tree is not touched: the changed file is put in its place by the overlay of
// the go command. It exits with 1 if a mutant survives, and with 2 if the list
// is out of date.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutant is one wrong line and the tests that should notice.
type mutant struct {
	name string
	file string
	old  string
	new  string
	test []string // arguments of go test

	deletes bool     // it stands for all statements of the file
	spared  []string // but those that begin with such a line
	changed string   // the file without one of them
}

func main() {
	only := flag.String("run", "", "only mutants whose name matches")
	list := flag.Bool("list", false, "list them, check that each fits its file, and run nothing")
	flag.Parse()
	survived, err := run(flag.Args(), *only, *list)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	case survived > 0:
		os.Exit(1)
	}
}

func run(files []string, only string, list bool) (survivors int, err error) {
	mutants, err := read(files)
	if err != nil {
		return 0, err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !wanted.MatchString(m.name) })
	ran, sound := map[verdict]int{}, map[string]bool{}
	for _, m := range mutants {
		changed, err := m.plant()
		if err != nil {
			return 0, fmt.Errorf("%q: %w", m.name, err)
		}
		if list {
			fmt.Println(m.name)
			continue
		}
		if err := m.baseline(ctx, mutants, sound); err != nil {
			return 0, fmt.Errorf("%q: %w", m.name, err)
		}
		result, err := m.try(ctx, changed)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", m.name, err)
		}
		ran[result]++
	}
	if !list {
		noticed := ran[caught] + ran[endless]
		fmt.Printf("%d of %d mutants caught, %d of them by a test that did not end\n", noticed, noticed+ran[survivor], ran[endless])
	}
	return ran[survivor], nil
}

// read reads the lists.
func read(files []string) (all []mutant, err error) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, m := range mutants {
			each, err := m.expand()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all = append(all, each...)
		}
	}
	return all, nil
}

// parse reads one list. A mutant without a file or a test has that of the one before it.
func parse(text string) ([]mutant, error) {
	var mutants []mutant
	for i, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.TrimSpace(value)
		if key == "" || key == "#" {
			continue
		}
		var last mutant
		if len(mutants) > 0 {
			last = mutants[len(mutants)-1]
		}
		switch key {
		case "mutant":
			mutants = append(mutants, mutant{name: value, file: last.file, test: last.test})
			continue
		case "delete":
			mutants = append(mutants, mutant{name: "delete " + value, file: value, test: last.test, deletes: true})
			continue
		}
		if len(mutants) == 0 {
			return nil, fmt.Errorf("line %d: %q before the first mutant", i+1, key)
		}
		m := &mutants[len(mutants)-1]
		switch key {
		case "file":
			m.file = value
		case "-", "+":
			side := map[string]*string{"-": &m.old, "+": &m.new}[key]
			if *side != "" {
				return nil, fmt.Errorf("line %d: mutant %q has two lines %s: it can replace one", i+1, m.name, key)
			}
			*side = value
		case "spare":
			m.spared = append(m.spared, value)
		case "test":
			m.test = strings.Fields(value)
		default:
			return nil, fmt.Errorf("line %d: unknown word %q", i+1, key)
		}
	}
	return mutants, nil
}

// plant returns the file with the wrong line in it. The right one must stand
// there exactly once.
func (m mutant) plant() (string, error) {
	if m.deletes {
		return m.changed, nil
	}
	if m.file == "" || m.old == "" || len(m.test) == 0 {
		return "", errors.New("a mutant needs file, - and test")
	}
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(text), "\n")
	found := 0
	for i, line := range lines {
		if strings.TrimSpace(line) == m.old {
			indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
			lines[i] = indent + m.new
			found++
		}
	}
	if found != 1 {
		return "", fmt.Errorf("%s has the line %d times, want once: %s", m.file, found, m.old)
	}
	return strings.Join(lines, "\n"), nil
}

// baseline runs the tests on the tree as it is, once for all mutants whose tests differ only in their
// names: a test that fails anyway notices nothing.
func (m mutant) baseline(ctx context.Context, all []mutant, sound map[string]bool) error {
	args, names := m.choice()
	key := strings.Join(args, " ")
	if sound[key] {
		return nil
	}
	for _, other := range all {
		if same, more := other.choice(); slices.Equal(same, args) {
			names += "|" + more
		}
	}
	args = append(args, "-run", names, "-timeout=30m") // that of a mutant is for its tests alone
	if out, err := goTest(ctx, map[string]string{}, args); err != nil {
		return fmt.Errorf("go test %s fails without any mutant:\n%s", strings.Join(args, " "), out)
	}
	sound[key] = true
	return nil
}

// choice splits the arguments of go test into the pattern of -run, "" for every test, and the others.
func (m mutant) choice() (others []string, pattern string) {
	others = slices.Clone(m.test)
	if i := slices.Index(others, "-run"); i >= 0 {
		pattern = others[i+1]
		others = slices.Delete(others, i, i+2)
	}
	return others, pattern
}

// hasty shortens the wait of tests for what comes at once without a mutant.
var hasty = mutant{
	file: "internal/testbed/expect.go", test: []string{"./internal/testbed"},
	old: "const Patience = 3 * time.Minute", new: "const Patience = 20 * time.Second",
}

// goTest runs go test with the changed files, by path. Programs that tests build find them
// in the environment. vet is off, because what it refuses is not noticed by a test.
func goTest(ctx context.Context, changed map[string]string, args []string) (out []byte, err error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if changed[hasty.file], err = hasty.plant(); err != nil {
		return nil, err
	}
	overlay, err := writeOverlay(dir, changed)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-failfast", "-vet=off", "-timeout=180s"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay), "INTERLOCK_CLIENTS=all")
	return cmd.CombinedOutput()
}

// verdict is the outcome of a mutant.
type verdict string

const (
	caught   verdict = "caught  "
	survivor verdict = "SURVIVED"
	endless  verdict = "endless " // the tests did not come to an end, which a busy machine can cause too
	unbuilt  verdict = "no build"
)

// try runs the tests on the changed file and reports whether they noticed.
func (m mutant) try(ctx context.Context, changed string) (verdict, error) {
	began := time.Now()
	out, failure := goTest(ctx, map[string]string{m.file: changed}, m.test)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if _, failed := errors.AsType[*exec.ExitError](failure); failure != nil && !failed {
		return "", failure
	}
	result := caught
	switch broken := strings.Contains(string(out), "[build failed]"); {
	case broken && m.deletes:
		return unbuilt, nil
	case broken, strings.Contains(string(out), "[setup failed]"), strings.Contains(string(out), "no tests to run"):
		return "", fmt.Errorf("it does not build, or selects no test:\n%s", out)
	case failure == nil:
		result = survivor
	case strings.Contains(string(out), "panic: test timed out"):
		result = endless
	}
	fmt.Printf("%s %6.1fs  %s\n", result, time.Since(began).Seconds(), m.name)
	return result, nil
}

func writeOverlay(dir string, changed map[string]string) (file string, err error) {
	replace := map[string]string{}
	for file, text := range changed {
		original, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		replace[original] = filepath.Join(dir, strconv.Itoa(len(replace))+"-"+filepath.Base(file))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}
