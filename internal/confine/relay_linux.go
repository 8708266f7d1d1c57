package confine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	chunk = 64 << 10
	// page is the capacity of the program's standard input. A pipe of one page is writable when the program has read all of it.
	page = 4096
)

// names are the standard files, in the words of messages.
var names = [...]string{"standard input", "standard output", "standard error"}

// relay copies bytes between the standard files of the caller and those of a program. Whoever has an open file can do more with it
// than read or write: open a pipe in the other direction, cut a log off, take a terminal. So the program gets no open file of the
// caller: it gets pipes whose other ends only this process has, and a terminal of its own.
type relay struct {
	caller  [3]int // the caller's descriptors, or -1 where the program has a file that it shares with nobody
	pipes   [3]int // this process's ends, or -1
	screens []int  // which of the program's standard files are its terminal
	theirs  []*os.File
	over    int // an eventfd, readable once the program has ended
	copied  chan error
	copies  int
}

// separate replaces the files of cmd. Those that are no files stay: os/exec makes a pipe for each.
func separate(cmd *exec.Cmd) (_ *relay, err error) {
	r := &relay{caller: [3]int{-1, -1, -1}, pipes: [3]int{-1, -1, -1}, copied: make(chan error, 4)} // one for each file, and for the terminal
	if r.over, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("preparing the program's standard files: %w", err)
	}
	in, _ := cmd.Stdin.(*os.File)
	out, _ := cmd.Stdout.(*os.File)
	errOut, _ := cmd.Stderr.(*os.File)
	own := [3]*os.File{}
	for i, f := range []*os.File{in, out, errOut} {
		if f == nil {
			continue
		}
		if r.caller[i], err = descriptor(f); err != nil {
			break
		}
		if i == 2 && own[1] != nil && same(r.caller[1], r.caller[2]) { // one pipe keeps the order of what the program writes to both
			own[2] = own[1]
			continue
		}
		if own[i], err = r.replace(i); err != nil {
			break
		}
	}
	if err != nil {
		r.close()
		return nil, err
	}
	if in != nil {
		cmd.Stdin = reader(own[0])
	}
	if out != nil {
		cmd.Stdout = writer(own[1])
	}
	if errOut != nil {
		cmd.Stderr = writer(own[2])
	}
	return r, nil
}

// reader and writer keep an interface nil if its file is.
func reader(f *os.File) io.Reader {
	if f == nil {
		return nil
	}
	return f
}

func writer(f *os.File) io.Writer {
	if f == nil {
		return nil
	}
	return f
}

// descriptor returns the number of a file. Fd would make a descriptor blocking that the caller shares with others.
func descriptor(f *os.File) (fd int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	return fd, conn.Control(func(n uintptr) { fd = int(n) })
}

func same(a, b int) bool {
	var first, second unix.Stat_t
	return unix.Fstat(a, &first) == nil && unix.Fstat(b, &second) == nil && first.Dev == second.Dev && first.Ino == second.Ino
}

// replace returns what the program gets in place of a file of the caller: nothing for a terminal, whose place the program's own takes.
func (r *relay) replace(i int) (*os.File, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(r.caller[i], &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", names[i], err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO:
		return r.pipe(i)
	case unix.S_IFCHR:
		if isTerminal(r.caller[i]) {
			r.screens = append(r.screens, i)
			return nil, nil
		}
		for _, one := range devices { // opened again, with no flag, position or lock of the caller's
			var known unix.Stat_t
			path := filepath.Join("/dev", one)
			if one == "tty" || unix.Stat(path, &known) != nil || known.Rdev != stat.Rdev {
				continue
			}
			r.caller[i] = -1
			f, err := os.OpenFile(path, map[bool]int{true: os.O_RDONLY, false: os.O_WRONLY}[i == 0], 0)
			if err == nil {
				r.theirs = append(r.theirs, f)
			}
			return f, err
		}
	case unix.S_IFSOCK:
		kind, err := unix.GetsockoptInt(r.caller[i], unix.SOL_SOCKET, unix.SO_TYPE)
		if _, alone := unix.Getpeername(r.caller[i]); err == nil && alone == nil && kind == unix.SOCK_STREAM {
			return r.pipe(i)
		}
		return nil, fmt.Errorf("%s is a socket that is not a connected stream: use a file, a pipe or a terminal", names[i])
	}
	return nil, fmt.Errorf("%s is a folder, a device or something else that brevet cannot copy: use a file, a pipe or a terminal", names[i])
}

// pipe returns the program's end of a new pipe.
func (r *relay) pipe(i int) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	ours, theirs := ends[0], ends[1]
	if i == 0 {
		ours, theirs = ends[1], ends[0]
		if _, err := unix.FcntlInt(uintptr(ours), unix.F_SETPIPE_SZ, page); err != nil {
			return nil, errors.Join(err, unix.Close(ours), unix.Close(theirs))
		}
	}
	f := os.NewFile(uintptr(theirs), names[i])
	r.pipes[i], r.theirs = ours, append(r.theirs, f)
	return f, unix.SetNonblock(ours, true)
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// started closes the ends that the program has.
func (r *relay) started() {
	for _, f := range r.theirs {
		_ = f.Close()
	}
	r.theirs = nil
}

// copy starts to copy.
func (r *relay) copy() {
	if r.pipes[0] >= 0 {
		r.background(func() error { _ = r.input(); return nil }) // what the program does not read is nobody's failure
	}
	for _, i := range []int{1, 2} {
		if r.pipes[i] >= 0 {
			r.background(func() error {
				defer func() { _ = unix.Close(r.pipes[i]) }() // so that the program learns that nobody reads
				return r.output(r.pipes[i], r.caller[i], names[i])
			})
		}
	}
}

// background runs a copy whose end finish waits for.
func (r *relay) background(run func() error) {
	r.copies++
	go func() { r.copied <- run() }()
}

// finish copies what an ended program has left. The system has ended everything that could still write, or else what writes was not
// waited for. A signal ends the wait for a reader that does not read.
func (r *relay) finish(signals <-chan os.Signal) error {
	r.end()
	var errs []error
	for ; r.copies > 0; r.copies-- {
		select {
		case err := <-r.copied:
			errs = append(errs, err)
		case <-signals:
			return errors.Join(append(errs, errors.New("a signal came before the program's output was copied"))...)
		}
	}
	return errors.Join(errs...)
}

func (r *relay) end() { _, _ = unix.Write(r.over, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// close closes what the program never got.
func (r *relay) close() {
	r.started()
	for _, fd := range r.pipes {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// output copies from the program to the caller.
func (r *relay) output(from, to int, name string) error {
	buf := make([]byte, chunk)
	for {
		n := r.read(from, buf)
		if n <= 0 {
			return nil
		}
		if err := writeAll(to, buf[:n]); errors.Is(err, unix.EPIPE) {
			return nil
		} else if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
}

// read reads what the program writes. Without a program it reads what is there.
func (r *relay) read(fd int, buf []byte) int {
	for over := false; ; {
		switch n, err := unix.Read(fd, buf); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !over:
			over = r.wait(unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		default:
			return n
		}
	}
}

// wait waits for an event of a descriptor, and reports whether the program has ended.
func (r *relay) wait(events ...unix.PollFd) (over bool) {
	all := append(events, unix.PollFd{Fd: int32(r.over), Events: unix.POLLIN})
	for {
		if _, err := unix.Poll(all, -1); !errors.Is(err, unix.EINTR) {
			copy(events, all)
			return all[len(events)].Revents != 0
		}
	}
}

// writeAll writes to a file of the caller, whose flags stay as they are.
func writeAll(fd int, text []byte) error {
	for len(text) > 0 {
		n, err := unix.Write(fd, text)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case n > 0:
			text = text[n:]
		}
	}
	return nil
}

// input copies from the caller to the program, and takes from the caller only what the program has read: the rest is for the program
// that runs next, as it would be if both had the same open file.
func (r *relay) input() error {
	to := r.pipes[0]
	defer func() { _ = unix.Close(to) }()
	from, err := newSource(r.caller[0])
	if err != nil {
		return err
	}
	buf := make([]byte, page)
	for {
		// The write end of a pipe without readers has an error, for which poll needs no request.
		events := []unix.PollFd{{Fd: int32(r.caller[0]), Events: unix.POLLIN}, {Fd: int32(to)}}
		if r.wait(events...) || events[1].Revents != 0 {
			return nil
		}
		n, err := from.peek(buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return err
		}
		if n, err = unix.Write(to, buf[:n]); err != nil {
			return err
		}
		space := []unix.PollFd{{Fd: int32(to), Events: unix.POLLOUT}}
		over := r.wait(space...)
		left, err := unix.IoctlGetInt(to, unix.TIOCINQ)
		if read := !over && space[0].Revents&unix.POLLERR == 0; err != nil || read {
			left = 0 // the pipe has space only if it is empty, or if the program has made it larger
		}
		if err := from.take(max(0, n-left)); err != nil || over {
			return err
		}
	}
}

// source reads from a descriptor of the caller in two steps, and never waits.
type source struct {
	peek func(buf []byte) (int, error)
	take func(n int) error
}

func newSource(fd int) (*source, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	var copied [2]int
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return &source{
			peek: func(buf []byte) (int, error) {
				at, err := unix.Seek(fd, 0, io.SeekCurrent)
				if err != nil {
					return 0, err
				}
				return unix.Pread(fd, buf, at)
			},
			take: func(n int) error { _, err := unix.Seek(fd, int64(n), io.SeekCurrent); return err },
		}, nil
	case unix.S_IFSOCK:
		receive := func(buf []byte, flags int) (int, error) {
			n, _, err := unix.Recvfrom(fd, buf, flags|unix.MSG_DONTWAIT)
			return n, err
		}
		return &source{
			peek: func(buf []byte) (int, error) { return receive(buf, unix.MSG_PEEK) },
			take: func(n int) error { _, err := receive(make([]byte, n), unix.MSG_WAITALL); return err },
		}, nil
	default:
		// The content goes through a pipe of this process's own: the program must not share the caller's memory.
		if err := unix.Pipe2(copied[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return nil, err
		}
	}
	return &source{
		peek: func(buf []byte) (int, error) {
			n, err := unix.Tee(fd, copied[1], len(buf), unix.SPLICE_F_NONBLOCK)
			if n <= 0 || err != nil {
				return 0, err
			}
			return unix.Read(copied[0], buf[:n])
		},
		take: func(n int) error {
			for n > 0 {
				got, err := unix.Splice(fd, nil, copied[1], nil, n, unix.SPLICE_F_NONBLOCK)
				if got <= 0 || err != nil {
					return err
				}
				if _, err := unix.Read(copied[0], make([]byte, got)); err != nil {
					return err
				}
				n -= int(got)
			}
			return nil
		},
	}, nil
}
