package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
)

// eventLog is etcd's log, and detects that etcd cannot continue: etcd logs that, and
// then ends its goroutine by a panic, or the process.
type eventLog struct {
	file   *os.File
	failed chan error // the first failure after which etcd cannot continue
}

// openEventLog opens the log in a data directory, readable by the user alone.
func openEventLog(dir string) (*eventLog, error) {
	f, err := openPrivate(LogFile(dir), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("embedded: open the log of etcd: %w", err)
	}
	return &eventLog{file: f, failed: make(chan error, 1)}, nil
}

func (j *eventLog) logger() *zap.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(j.file), zap.WarnLevel)
	return zap.New(core, zap.WithCaller(true), zap.WithFatalHook(j), zap.WithPanicHook(j))
}

// OnWrite ends the goroutine that cannot continue, instead of the process.
func (j *eventLog) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", e.Message, cause)
		}
	}
	select {
	case j.failed <- err:
	default: // only the first reason is reported
	}
	runtime.Goexit()
}

func (j *eventLog) close() { _ = j.file.Close() } // everything is written

// openPrivate opens a file of the user's own, and creates it if it is missing. It
// rejects a symbolic link, because another user could have chosen its target.
func openPrivate(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link, which is not followed", path)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 { // from an earlier version
		err = f.Chmod(0o600)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// privateDir creates the data directory, or checks that no other user can write to
// the existing one or has replaced it by a link.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("embedded: create the data directory: %w", err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "member")} {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return fmt.Errorf("embedded: check the data directory: %w", err)
		case !info.IsDir():
			return fmt.Errorf("embedded: %s is not a directory; a symbolic link is not followed", path)
		case info.Mode().Perm()&0o077 != 0:
			if err := os.Chmod(path, 0o700); err != nil {
				return fmt.Errorf("embedded: restrict the data directory to its owner: %w", err)
			}
		}
	}
	return nil
}

// endStreams ends open watches and keep-alives when closing is closed. A node that
// stops waits for all of its streams. These two have no end of their own, so the node
// would wait until its request timeout, five seconds.
func endStreams(closing <-chan struct{}) grpc.ServerOption {
	return grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		handled := make(chan struct{})
		defer close(handled)
		go func() {
			select {
			case <-closing:
				cancel()
			case <-handled:
			}
		}()
		return next(srv, endingStream{stream, ctx})
	})
}

// endingStream is a stream with its own context.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns a context that ends with the stream or when the node closes.
func (s endingStream) Context() context.Context { return s.ctx }
