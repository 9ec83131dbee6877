// Command reference writes the generated pages of the documentation's site into a directory:
// one for each command, and one for the events of package observe.
//
//	go run ./server/internal/reference OBSERVE DIR
package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/interlock-dev/interlock/server/internal/cli"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: reference OBSERVE DIR")
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func write(observe, dir string) error {
	commands := filepath.Join(dir, "commands")
	if err := os.MkdirAll(commands, 0o755); err != nil {
		return err
	}
	err := cli.Pages(func(name, text string) error {
		return os.WriteFile(filepath.Join(commands, name+".md"), []byte(text), 0o644)
	})
	if err != nil {
		return err
	}
	text, err := events(observe)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "events.md"), []byte(text), 0o644)
}

// events is a page with the hooks and events that the source of package observe declares.
func events(dir string) (string, error) {
	set := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return "", err
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	}
	p, err := doc.NewFromFiles(set, files, "observe")
	if err != nil {
		return "", err
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
				text := strings.Join(strings.Fields(f.Doc.Text()+f.Comment.Text()), " ")
				fmt.Fprintln(&b, strings.TrimSuffix("- `"+name.Name+"`: "+text, ": "))
			}
		}
	}
	return b.String(), nil
}
