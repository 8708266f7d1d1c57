package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
)

// place is where a program finds a credential.
type place interface {
	// put delivers a credential: the first one before the program starts, and the others while it runs.
	put(token *client.Token) error
	// environ returns the variables that the program gets, once there is a credential.
	environ() []string
	// remove deletes what is left of the credential.
	remove()
}

// extract returns the part of a credential that a program needs.
type extract func(token *client.Token) (secret.Text, error)

// extractField returns one field of a credential. Without a field name, that is the token of a JWT, or all of another
// credential as JSON.
func extractField(field string) extract {
	return func(token *client.Token) (secret.Text, error) {
		if field == "" {
			return token.Secret, nil
		}
		if slices.Contains(token.Fields(), field) {
			return token.Field(field), nil
		}
		if token.Kind == kindJWT {
			return secret.Text{}, fmt.Errorf("%s is a JWT, which has no field %q", token.Scope, field)
		}
		return secret.Text{}, fmt.Errorf("%s has no field %q: use one of %s", token.Scope, field, strings.Join(token.Fields(), ", "))
	}
}

// fieldName matches names of fields, to tell a field from the end of a path.
var fieldName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// cutField splits NAME=FIELD at the last =. If the text after it cannot be a field name, all of the text is the name.
func cutField(text string) (name, field string) {
	i := strings.LastIndex(text, "=")
	if i < 0 || !fieldName.MatchString(text[i+1:]) {
		return text, ""
	}
	return text[:i], text[i+1:]
}

// envPlace is an environment variable.
type envPlace struct {
	name  string
	of    extract
	value secret.Text
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func newEnvPlace(text string) (*envPlace, error) {
	name, field := cutField(text)
	if !variableName.MatchString(name) {
		return nil, fmt.Errorf("%q is neither NAME nor NAME=FIELD of a variable", text)
	}
	return &envPlace{name: name, of: extractField(field)}, nil
}

func (e *envPlace) put(token *client.Token) error {
	value, err := e.of(token)
	if err == nil && strings.Contains(value.Reveal(), "\x00") {
		return fmt.Errorf("%s: a variable cannot hold this credential, which has a NUL byte: use --file", e.name)
	}
	e.value = value
	return err
}

func (e *envPlace) environ() []string { return []string{e.name + "=" + e.value.Reveal()} }
func (e *envPlace) remove()           {}

// filePlace is a file that only its owner can read. Programs that open it always find one whole credential.
type filePlace struct {
	path  string
	of    extract
	vars  []string
	there bool // this process wrote the file at path
}

func newFilePlace(text string, folder *privateFolder) (*filePlace, error) {
	name, field := cutField(text)
	path, err := folder.resolve(name)
	return &filePlace{path: path, of: extractField(field)}, err
}

func (f *filePlace) put(token *client.Token) error {
	content, err := f.of(token)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(f.path); err == nil && !f.there {
		return fmt.Errorf("%s already exists, and would be removed when the program ends: use another path", f.path)
	}
	if err := replaceFile(f.path, content.Reveal()); err != nil {
		return fmt.Errorf("writing a credential: %w", err)
	}
	f.there = true
	return nil
}

func (f *filePlace) environ() []string { return f.vars }

func (f *filePlace) remove() {
	if f.there {
		_ = os.Remove(f.path)
	}
}

// socketPlace is a Unix socket that sends the newest credential to each connection, and closes it.
type socketPlace struct {
	path     string
	of       extract
	listener net.Listener // set once there is a credential to send
	current  atomic.Pointer[secret.Text]
}

// answerWithin is how long a connection may take to read a credential.
const answerWithin = 5 * time.Second

func newSocketPlace(text string, folder *privateFolder) (*socketPlace, error) {
	name, field := cutField(text)
	path, err := folder.resolve(name)
	return &socketPlace{path: path, of: extractField(field)}, err
}

// listenPrivately opens a socket to which nobody else can connect, not even for a moment.
func listenPrivately(path string) (net.Listener, error) {
	if len(path) > longestSocketPath {
		return nil, fmt.Errorf("%s is too long for a socket: use at most %d bytes", path, longestSocketPath)
	}
	if err := removeDeadSocket(path); err != nil {
		return nil, err
	}
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", path) //nolint:noctx // it does not wait for anything
}

// removeDeadSocket removes a socket that a killed process left behind. It returns an error if a running process serves the
// socket.
func removeDeadSocket(path string) error {
	conn, err := net.Dial("unix", path) //nolint:noctx // local, answers at once
	if err == nil {
		return errors.Join(fmt.Errorf("another process serves %s: stop it, or choose another path", path), conn.Close())
	}
	info, statErr := os.Lstat(path)
	if !errors.Is(err, syscall.ECONNREFUSED) || statErr != nil || info.Mode()&os.ModeSocket == 0 {
		return nil //nolint:nilerr // nothing to remove: listening says what is wrong, if anything is
	}
	return os.Remove(path)
}

func (s *socketPlace) put(token *client.Token) error {
	content, err := s.of(token)
	if err != nil {
		return err
	}
	s.current.Store(&content)
	if s.listener != nil {
		return nil
	}
	if s.listener, err = listenPrivately(s.path); err != nil {
		return err
	}
	go answerEach(s.listener, s.answer)
	return nil
}

func (s *socketPlace) answer(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(answerWithin))
	_, _ = io.WriteString(conn, s.current.Load().Reveal())
	if half, ok := conn.(*net.UnixConn); ok && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, conn) // closing with unread input could cut off the credential
	}
}

// answerEach calls answer for each connection until the listener is closed.
func answerEach(listener net.Listener, answer func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			answer(conn)
		}()
	}
}

func (s *socketPlace) environ() []string { return nil }

func (s *socketPlace) remove() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
}
