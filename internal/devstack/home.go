package devstack

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Home is the folder in which a user keeps the state of all stacks, such as ~/.local/state/brevet.
//
// The servers of a stack obey the files of its state folder, so a state folder that came with a repository could run commands as
// the user, or open ports to the network. A stack therefore uses a folder only with proof that this user made it on this machine:
// a code over the folder's path, made with a key that stays in Home.
type Home struct{ Dir string }

const (
	homeKey   = "dev.key"   // in Home
	proofFile = "made-here" // in a state folder
	dirMode   = 0o700
)

// Folder returns the state folder of the stack that a user runs in a working folder.
func (h Home) Folder(work string) (string, error) {
	work, err := filepath.EvalSymlinks(work)
	if err != nil {
		return "", fmt.Errorf("resolving the working folder: %w", err)
	}
	const longest, digits = 24, 10 // short, for the paths of sockets
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, filepath.Base(work))
	sum := sha256.Sum256([]byte(work))
	return filepath.Join(h.Dir, "dev", plain[:min(len(plain), longest)]+"-"+hex.EncodeToString(sum[:])[:digits]), nil
}

// Claim creates a state folder, or takes one that is empty or that Claim made earlier, and returns its path without links. It
// returns [ErrForeign] or [ErrUntrusted] for any other folder, and changes nothing there.
func (h Home) Claim(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the state folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), dirMode); err != nil {
		return "", fmt.Errorf("creating the state folder (set --state to use another): %w", err)
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("creating the state folder (set --state to use another): %w", err)
	}
	if dir, err = ownFolder(dir); err != nil {
		return "", err
	}
	proof, err := h.proof(dir)
	if err != nil {
		return "", err
	}
	inside, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("looking into the state folder: %w", err)
	}
	if len(inside) > 0 {
		return dir, isProven(dir, proof)
	}
	if err := errors.Join(os.Chmod(dir, dirMode), writePrivate(filepath.Join(dir, proofFile), []byte(proof))); err != nil {
		return "", fmt.Errorf("marking the state folder: %w", err)
	}
	return dir, nil
}

// Verify returns the path of a state folder without links. It returns [fs.ErrNotExist] if there is none, and [ErrForeign] or
// [ErrUntrusted] if Claim did not make the folder.
func (h Home) Verify(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the state folder: %w", err)
	}
	if dir, err = ownFolder(dir); err != nil {
		return "", err
	}
	proof, err := h.proof(dir)
	if err != nil {
		return "", err
	}
	return dir, isProven(dir, proof)
}

// ownFolder resolves the links above a folder. It refuses a folder that is a link or another user's, and one that other users can
// replace.
func ownFolder(dir string) (string, error) {
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	dir = filepath.Join(above, filepath.Base(dir))
	if err := trustedAbove(dir); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%w: %s is a link, or not a folder of the user who runs this (user %d)", ErrUntrusted, dir, os.Geteuid())
	}
	return dir, nil
}

// proof returns the code that proves that this user made a folder on this machine. It creates the key if there is none.
func (h Home) proof(dir string) (string, error) {
	if err := os.MkdirAll(h.Dir, dirMode); err != nil {
		return "", fmt.Errorf("creating your folder for state (set XDG_STATE_HOME to a folder that you can write to): %w", err)
	}
	home, err := ownFolder(h.Dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(home, homeKey)
	key, err := readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := path + "." + rand.Text()
		err = os.WriteFile(fresh, []byte(rand.Text()), 0o600)
		if linked := os.Link(fresh, path); err == nil && !errors.Is(linked, fs.ErrExist) {
			err = linked // of two processes, the first one's key counts
		}
		if err = errors.Join(err, os.Remove(fresh)); err == nil {
			key, err = readOwn(path)
		}
	}
	if err != nil {
		return "", fmt.Errorf("preparing your folder for state (set XDG_STATE_HOME to a folder that you can write to): %w", err)
	}
	code := hmac.New(sha256.New, key)
	code.Write([]byte(dir))
	return hex.EncodeToString(code.Sum(nil)), nil
}

func isProven(dir, proof string) error {
	found, err := readOwn(filepath.Join(dir, proofFile))
	if err == nil && hmac.Equal(found, []byte(proof)) {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s. Its files could run commands as you. Use another folder, or delete this one if it is from an earlier version of Brevet",
			ErrForeign, dir)
	}
	return fmt.Errorf("%w: %s: %w", ErrForeign, dir, err)
}

// readOwn reads a file of this user that nobody else can read or write. It follows no link, and waits for no pipe.
func readOwn(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || int(stat.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%w: %s is not a private file of the user who runs this (user %d)", ErrUntrusted, path, os.Geteuid())
	}
	const largest = 1 << 20
	return io.ReadAll(io.LimitReader(file, largest))
}

// noLinks returns an error if a state folder has a link inside, or anything of another user outside of the files of PostgreSQL, which may
// run as another user. Files are written and deleted there by their names.
func noLinks(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a server of a killed stack is ending
		}
		if err != nil {
			return err
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%w: %s is a link: replace it with what it leads to", ErrUntrusted, path)
		}
		if inside := strings.TrimPrefix(path, dir+"/"); strings.HasPrefix(inside, "postgres") || strings.HasPrefix(inside, "run") {
			return nil
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return ours(path, info)
	})
}
