package testbed

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const archived = "-XX:SharedArchiveFile="

// jvm returns the command of a server in Java, to which the caller appends flags, the class and
// its arguments. It is set to start fast and stay small, not to run fast for long.
//
// From an archive of the server's classes a JVM starts with about half of the processor time.
// The archive is in the user's cache directory. Without it, or if it does not fit, the JVM
// reads the jars.
func jvm(java, classpath string, flags ...string) []string {
	argv := append([]string{java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"}, flags...)
	if cache, err := os.UserCacheDir(); err == nil {
		name := sha256.New()
		for _, path := range []string{java, strings.TrimSuffix(classpath, "*")} {
			if info, err := os.Stat(path); err == nil {
				fmt.Fprintln(name, path, info.Size(), info.ModTime().UnixNano())
			}
		}
		argv = append(argv, fmt.Sprintf("%s%s/interlock/classes-%x.jsa", archived, cache, name.Sum(nil)[:8]))
	}
	return append(argv, "-cp", classpath)
}

// archiveClasses creates the archive that the command of the server names, if there is none:
// the server is started and ended once.
func (s *Server) archiveClasses() error {
	argv := s.kind.command(s.data(), s.ports)
	i := slices.IndexFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, archived) })
	if i < 0 {
		return nil
	}
	archive := strings.TrimPrefix(argv[i], archived)
	if _, err := os.Stat(archive); err == nil || os.MkdirAll(filepath.Dir(archive), 0o755) != nil {
		return nil // without one a start takes longer
	}
	part := fmt.Sprintf("%s.%d-%s", archive, os.Getpid(), filepath.Base(s.dir))
	defer os.Remove(part)
	argv[i] = "-XX:ArchiveClassesAtExit=" + part
	err := s.run(argv)
	if err == nil && s.proc.cmd.Process.Signal(syscall.SIGTERM) == nil && s.proc.wait(bound) {
		os.Rename(part, archive)
	}
	if s.proc != nil {
		s.kill()
	}
	if err != nil {
		return err
	}
	return s.emptyData()
}
