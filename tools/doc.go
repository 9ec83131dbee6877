// Package tools has no code. Its module pins the commands that only tests need, and
// package mutants plants wrong lines.
package tools
