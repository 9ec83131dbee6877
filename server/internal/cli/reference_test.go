package cli

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestReference writes the generated pages of the documentation's site into the directory
// $REFERENCE. Each command has a page; so have the events of package observe, and the errors that
// programs compare. The pages of the commands become man pages in the directory $MANUAL.
func TestReference(t *testing.T) {
	const repository = "../../.."
	pages := map[string]string{}
	addCommands(newApp("interlock", io.Discard, io.Discard).root(), pages)
	var err error
	pages["events.md"], err = events(repository)
	testbed.OK(t, err)
	pages["errors.md"], err = errorPage(repository)
	testbed.OK(t, err)
	for name, want := range map[string]string{
		"commands/interlock-locks-show.md":   "## Flags of every command",
		"commands/interlock-guard-rebase.md": `(default "user@host")`,
		"commands/interlock-guard.md":        "- [interlock guard enter](interlock-guard-enter.md): ",
		"events.md":                          "\n## LockEnded\n",
		"errors.md":                          "\n- `saga.ErrCompensated`: ",
	} {
		if !strings.Contains(pages[name], want) {
			t.Errorf("%s has no %q", name, want)
		}
	}
	if text := pages["commands/interlock-version.md"]; strings.Contains(text, "--backend") || !strings.Contains(text, "--output") {
		t.Errorf("the version is that of no backend: %s", text)
	}
	manual := map[string]string{}
	for file, text := range pages {
		if dir, file := filepath.Split(file); dir != "" {
			name := strings.TrimSuffix(file, ".md")
			manual[name+".1"] = manPage(name, text)
		}
	}
	for _, want := range []string{".SH NAME\ninterlock-locks-show \\- ", ".SH SYNOPSIS\n.EX\ninterlock locks show NAME", "\n.SH Examples\n"} {
		if text := manual["interlock-locks-show.1"]; !strings.Contains(text, want) {
			t.Errorf("the man page has no %q: %s", want, text)
		}
	}
	write := func(dir string, pages map[string]string) {
		for name, text := range pages {
			file := filepath.Join(dir, name)
			testbed.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
		}
	}
	if dir := os.Getenv("REFERENCE"); dir != "" {
		write(dir, pages)
	}
	if dir := os.Getenv("MANUAL"); dir != "" {
		write(dir, manual)
	}
}

var (
	headOfPage  = regexp.MustCompile(`^# .*\n\n(.*)\.\n`)
	linkBetween = regexp.MustCompile(`\[(interlock [^]]*)\]\([^)]*\)`)
)

// manPage converts the page of a command. apropos reads its first section.
func manPage(name, page string) string {
	page = headOfPage.ReplaceAllString(page, "# NAME\n\n"+name+` - ${1}`+"\n\n# SYNOPSIS\n")
	page = linkBetween.ReplaceAllString(page, "$1")
	return string(md2man.Render(fmt.Appendf(nil, "%% %q \"1\" \"\" \"\" \"Interlock\"\n\n%s", strings.ToUpper(name), page)))
}

// addCommands adds the pages of a command and of those below it.
func addCommands(c *cobra.Command, pages map[string]string) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	pages["commands/"+strings.ReplaceAll(c.CommandPath(), " ", "-")+".md"] = page(c)
	for _, sub := range c.Commands() {
		addCommands(sub, pages)
	}
}

// page returns the help of a command.
func page(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."), c.UseLine())
	section := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", title, text)
		}
	}
	if c.Long != "" {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimSpace(c.Long))
	}
	section("Examples", c.Example)
	section("Flags", c.LocalFlags().FlagUsages())
	section("Flags of every command", globalFlags(c))
	if c.HasAvailableSubCommands() {
		b.WriteString("\n## Commands\n\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "- [%s](%s.md): %s\n", sub.CommandPath(), strings.ReplaceAll(sub.CommandPath(), " ", "-"), sub.Short)
			}
		}
	}
	return b.String()
}

// errorPage is a page with the exported errors of all packages that programs import.
func errorPage(repository string) (string, error) {
	var b strings.Builder
	b.WriteString("# Errors\n\nCompare them with `errors.Is` or `errors.As`. `interlock.Kind` classifies every error: definite, retryable, uncertain or a bug.\n")
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); path != repository && (name[0] == '.' || slices.Contains([]string{"internal", "testdata", "bin", "examples", "server", "bench", "tools"}, name)) {
			return fs.SkipDir
		}
		p, err := parse(path)
		if err == nil && p != nil {
			path, err = filepath.Rel(repository, path)
			b.WriteString(errorsOf(p, path))
		}
		return err
	})
	return b.String(), err
}

// errorsOf lists the errors of a package: variables Err… and types …Error.
func errorsOf(p *doc.Package, path string) string {
	var list []string
	for _, v := range p.Vars {
		for _, spec := range v.Decl.Specs {
			spec := spec.(*ast.ValueSpec)
			for _, name := range spec.Names {
				if strings.HasPrefix(name.Name, "Err") {
					list = append(list, entry(p.Name+"."+name.Name, cmp.Or(spec.Doc.Text(), spec.Comment.Text(), v.Doc)))
				}
			}
		}
	}
	for _, t := range p.Types {
		if t.Name != "Error" && strings.HasSuffix(t.Name, "Error") {
			list = append(list, entry(p.Name+"."+t.Name, t.Doc))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("\n## %s\n\n%s\n", strings.Replace(filepath.ToSlash(path), ".", p.Name, 1), strings.Join(list, "\n"))
}

var docLink = regexp.MustCompile(`\[\*?([A-Z][\w.]*)\]`)

// entry is an item of a list: a name and what it means.
func entry(name, text string) string {
	text = docLink.ReplaceAllString(text, "`$1`")
	return strings.TrimSuffix("- `"+name+"`: "+strings.Join(strings.Fields(text), " "), ": ")
}

// parse reads the package in a directory; nil if there is none that programs import.
func parse(dir string) (*doc.Package, error) {
	set := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if len(files) == 0 || files[0].Name.Name == "main" {
		return nil, nil
	}
	return doc.NewFromFiles(set, files, files[0].Name.Name)
}

// events is a page with the hooks and events that the source of package observe declares.
func events(repository string) (string, error) {
	p, err := parse(filepath.Join(repository, "observe"))
	if err != nil || p == nil {
		return "", fmt.Errorf("%s has no package observe: %w", repository, cmp.Or(err, fs.ErrNotExist))
	}
	var b strings.Builder
	b.WriteString("# Events\n\nThe hooks that receive events, and the fields of each event. Every field is for logs and metrics alike.\n")
	for _, t := range p.Types {
		structure, ok := t.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok || !ast.IsExported(t.Name) {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", t.Name, t.Doc)
		for _, f := range structure.Fields.List {
			for _, name := range f.Names {
				fmt.Fprintln(&b, entry(name.Name, f.Doc.Text()+f.Comment.Text()))
			}
		}
	}
	return b.String(), nil
}
