package devstack

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// folderLock is a kernel lock that ends with this process, so it cannot outlast a crash.
type folderLock struct{ file *os.File }

func lockFolder(dir string) (*folderLock, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = file.Close() }()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: process %s runs a stack in %s", ErrInUse, holder(file), dir)
		}
		return nil, fmt.Errorf("locking the state folder: %w", err)
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the lock: %w", err), file.Close())
	}
	return &folderLock{file}, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// holder reads the process id that the lock's owner wrote. The owner may not have written it yet.
func holder(file *os.File) string {
	text := make([]byte, 20)
	n, _ := file.ReadAt(text, 0)
	if pid := strings.TrimSpace(string(text[:n])); pid != "" {
		return pid
	}
	return "(unknown)"
}

// release keeps the file: if it were removed, two processes could lock two different files of the same name.
func (l *folderLock) release() error { return l.file.Close() }

// writePrivate replaces a file atomically, so that a crash leaves the old or the new one. Only its owner can read it.
func writePrivate(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return err
}

// onFreePort starts a server on the port that the file names, or on another free one. Another program may take the port
// between the choice and its use. Then onFreePort tries a new port, because that program could free the old one and take
// it again. It makes three attempts.
func onFreePort(note string, start func(port int) error) error {
	for tries := 3; ; tries-- {
		port, err := keepPort(note)
		if err != nil {
			return fmt.Errorf("choosing a port: %w", err)
		}
		if err := start(port); tries == 1 || !errors.Is(err, errPortTaken) {
			return err
		}
		if err := os.Remove(note); err != nil {
			return fmt.Errorf("choosing another port: %w", err)
		}
	}
}

// keepPort returns the port that the file names if it is still free. Otherwise it chooses another and writes it to the file.
func keepPort(path string) (int, error) {
	if text, err := os.ReadFile(path); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && portIsFree(port) {
			return port, nil
		}
	}
	for range 100 {
		var draw [2]byte
		_, _ = rand.Read(draw[:]) // never fails
		// Stay below the range that systems use for outgoing connections: a server that a fault test has stopped must find its
		// port still free.
		port := 20000 + int(binary.BigEndian.Uint16(draw[:])%12000)
		if portIsFree(port) {
			return port, writePrivate(path, []byte(strconv.Itoa(port)+"\n"))
		}
	}
	return 0, errors.New("no free port on 127.0.0.1 between 20000 and 31999")
}

func portIsFree(port int) bool {
	listener, err := net.Listen("tcp", loopback(port)) //nolint:noctx // closed at once
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// loopbackAddress is the only address on which servers listen.
const loopbackAddress = "127.0.0.1"

func loopback(port int) string { return net.JoinHostPort(loopbackAddress, strconv.Itoa(port)) }
