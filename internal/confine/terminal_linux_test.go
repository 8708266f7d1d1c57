package confine_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// person is somebody at a terminal, in which a program runs.
type person struct {
	t        *testing.T
	keyboard *os.File
	screen   *os.File
	cmd      *exec.Cmd
	ended    chan struct{}

	mu    sync.Mutex
	shown bytes.Buffer
	news  chan struct{}
	at    int // what the person has seen
}

// sit starts a program of the user at a new terminal.
func (u user) sit(t *testing.T, line ...string) *person {
	t.Helper()
	keyboard, path := terminal(t)
	screen, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, keyboard: keyboard, screen: screen, ended: make(chan struct{}), news: make(chan struct{}, 1)}
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 31, Col: 97}); err != nil {
		t.Fatal(err)
	}
	p.cmd = u.command(t, line...)
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm", "PS1=outside> ", "SELF="+self)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = screen, screen, screen
	p.cmd.SysProcAttr.Setctty = true
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := p.keyboard.Read(buf)
			p.mu.Lock()
			p.shown.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.news <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = screen.Close()
	})
	return p
}

// types presses keys.
func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.keyboard, keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits until a text is shown after what was seen before.
func (p *person) sees(text string) {
	p.t.Helper()
	for deadline := time.After(patience); ; {
		p.mu.Lock()
		all := p.shown.String()
		if i := strings.Index(all[p.at:], text); i >= 0 {
			p.at += i + len(text)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-p.news:
		case <-deadline:
			p.t.Fatalf("waited %s for %q; the terminal shows %q", patience, text, all)
		}
	}
}

// state returns the state of the terminal.
func (p *person) state() unix.Termios {
	p.t.Helper()
	state, err := unix.IoctlGetTermios(int(p.screen.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *state
}

// inBox is a shell's command for a confined program.
const inBox = "$SELF launch {} "

func shellAt(t *testing.T, u user) *person {
	t.Helper()
	p := u.sit(t, "bash", "--norc", "--noediting", "-i")
	p.sees("outside> ")
	return p
}

// A confined program has a terminal of its own, with the size of the caller's.
func TestProgramHasATerminalOfItsOwn(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		p := u.sit(t, self, "launch", "{}", "sh", "-c", `
			tty; stty size; for fd in 0 1 2; do test -t $fd || echo no $fd; done; echo through >/dev/tty
			trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.05; done`)
		p.sees("/dev/pts/0\r\n31 97\r\nthrough\r\nready\r\n")
		if err := unix.IoctlSetWinsize(int(p.screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 50}); err != nil {
			t.Fatal(err)
		}
		p.sees("20 50\r\n")
		<-p.ended
		if got := p.cmd.ProcessState.ExitCode(); got != 7 {
			t.Errorf("got %d, want the program's exit code", got)
		}
	})
}

// Programs for people work at it, and leave the caller's terminal as it was.
func TestProgramsForPeopleWork(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		p := shellAt(t, u)
		before := p.state()
		p.types(inBox + "bash --norc -i\n")
		p.sees("outside> ")
		p.types("PS1='inside'\"> \"; sh -c 'echo $((6*6)); exec sleep 900'\n")
		p.sees("36\r\n")
		p.types("\x1a") // Ctrl-Z
		p.sees("Stopped")
		p.sees("inside> ")
		p.types("kill %1; fg\n")
		p.sees("inside> ")
		p.types("read -s -p 'word? ' word; echo \"len=${#word}\"\n")
		p.sees("word? ")
		p.types("hidden\n")
		p.sees("len=6")
		p.sees("inside> ")
		p.types("exit 5\n")
		p.sees("outside> ")
		p.types("echo code=$?\n")
		p.sees("code=5")
		p.types(inBox + "python3 -q\n")
		p.sees(">>> ")
		p.types("6*7\n")
		p.sees("42\r\n>>> ")
		p.types("\x04") // Ctrl-D
		p.sees("outside> ")
		p.types(inBox + "sh -c 'seq 500 | less'\n")
		p.sees("\r\n30\r\n:")
		p.types("G")
		p.sees("500")
		p.types("q")
		p.sees("outside> ")
		p.types("seq 500 | tee >(cat >/dev/null) | LESS= " + inBox + "cat | less\n") // less of the caller gets the keys
		p.sees("\r\n30\r\n:")
		p.types("G")
		p.sees("500")
		p.types("q")
		p.sees("outside> ")
		p.types(inBox + "vim -n -u NONE -c 'set nocp' /tmp/none\n")
		p.sees("~")
		p.types("ihello\x1b:%p\r:q!\r")
		p.sees("outside> ")
		p.types("echo code=$?\n")
		p.sees("code=0")
		p.sees("outside> ")
		if after := p.state(); after != before {
			t.Errorf("got the terminal %+v, want it as before, %+v", after, before)
		}
	})
}

// The keys that stop a program stop it and its caller, and both go on together.
func TestStoppedProgramGoesOn(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		p := shellAt(t, u)
		before := p.state()
		p.types(inBox + "sh -c 'echo ready; exec cat'\n")
		p.sees("\nready\r\n")
		p.types("first\n")
		p.sees("first\r\nfirst\r\n")
		p.types("\x1a")
		p.sees("Stopped")
		p.sees("outside> ")
		if after := p.state(); after != before {
			t.Errorf("got the terminal %+v, want it as before, %+v", after, before)
		}
		p.types("echo $((6*7))\n")
		p.sees("42\r\n")
		p.types("bg\n")
		p.sees("outside> ")
		p.types("fg\n")
		p.sees("exec cat'\r\n")
		p.types("second\n")
		p.sees("second\r\nsecond\r\n")
		p.types("\x04")
		p.sees("outside> ")
		p.types(inBox + `sh -c 'trap "echo again" CONT; echo $((5*5)); while :; do sleep 0.05; done' </dev/null 2>/dev/null | cat` + "\n") // nothing of it is a terminal
		p.sees("25\r\n")
		p.types("\x1a")
		p.sees("Stopped")
		p.types("fg\n")
		p.sees("\r\nagain\r\n")
		p.types("\x03")
		p.sees("outside> ")
		p.types("echo codes=${PIPESTATUS[*]}\n")
		p.sees("codes=130")
	})
}

// T12: a confined program in the background cannot read a key, nor take the terminal, and waits alone: no process of its caller stops.
func TestProgramInTheBackgroundGetsNoKey(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		p := shellAt(t, u)
		p.types("sh -c '" + inBox + `sh -c "read word </dev/tty; echo \"got \$word\""; :' &` + "\n")
		p.sees("outside> ")
		p.types("until ps -A -o stat=,args= | grep -q '^T.*read word'; do sleep 0.05; done; sleep 1; echo stopped=$(pgrep -g $! -r T | wc -l)\n")
		p.sees("stopped=0\r\n")
		p.types("fg\n")
		p.sees("launch")
		p.types("key\n")
		p.sees("got key")
		p.sees("outside> ")
	})
}

// T12: a program that stops itself stops nobody else, such as a timeout above brevet, whether it is confined or only separated.
func TestProgramStopsNobodyElse(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		for _, line := range [][]string{{self, "launch", "{}"}, {self, "separate"}} {
			for _, name := range []string{"TSTP", "TTIN", "TTOU"} {
				program := "kill -" + name + " $$; echo on; kill -" + name + " 0; echo on; exit 6"
				cmd := u.command(t, append(append([]string{"sh", "-c", `"$@"; echo "ended $?"`, "sh"}, line...), "sh", "-c", program)...)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: u.credential} // the system does not stop the group of a session's leader
				if out, err := cmd.CombinedOutput(); err != nil || string(out) != "on\non\nended 6\n" {
					t.Fatalf("%s: %s: got %v and %q", line, name, err, out)
				}
			}
		}
	})
}

// T12: nor at a terminal, whose keys it gets. Only the key that a person presses stops the group.
func TestOnlyAKeyStopsTheCaller(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		p := shellAt(t, u)
		p.types("sh -c '" + inBox + `sh -c "read x; kill -TSTP \$\$; echo o\"\"n; exec cat"; echo code=$?'` + "\n")
		p.types("key\n")
		p.sees("\non\r\n")
		p.types("\x1a")
		p.sees("Stopped")
		p.sees("outside> ")
		p.types("fg\n")
		p.sees("launch")
		p.types("second\n")
		p.sees("second\r\nsecond\r\n")
		p.types("\x04")
		p.sees("code=0")
	})
}

// T12: a program whose standard input is not the terminal gets no key, although its output goes there, and leaves the terminal as it is.
func TestKeysOfAPromptAreTheCallers(t *testing.T) {
	as(t, func(t *testing.T, u user) {
		for _, to := range []string{"", ">/dev/null", "2>/dev/null"} {
			// A shell without job control: all is in the foreground. The first program reads for ever, whatever it gets.
			p := u.sit(t, "sh", "-c", `
				"$SELF" launch {} sh -c 'exec </dev/tty; stty raw -echo; echo started >&2; echo started; cat' </dev/null `+to+` & box=$!
				"$SELF" launch {} sh -c 'read x </dev/tty; echo "box=$x"' </dev/null
				echo ready; read -r answer; echo "answer=$answer"; kill $box`)
			before := p.state()
			p.sees("box=\r")
			p.sees("ready\r\n")
			p.types("correct horse battery staple\n")
			p.sees("\r\nanswer=correct horse battery staple\r\n")
			if after := p.state(); after != before {
				t.Errorf("%q: got the terminal %+v, want it as before, %+v", to, after, before)
			}
			<-p.ended
		}
	})
}
