package devstack_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// userHome returns the folder for state of a user.
func userHome(t *testing.T) devstack.Home {
	t.Helper()
	return devstack.Home{Dir: filepath.Join(t.TempDir(), "state", "brevet")}
}

func TestStateFolderIsNamedAfterTheWorkingFolder(t *testing.T) {
	t.Parallel()
	home, work := userHome(t), t.TempDir()
	names := map[string]bool{}
	for _, name := range []string{"api", "deep/api", "Ünïcode $(x)", strings.Repeat("long", 30)} {
		folder := filepath.Join(work, name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err := home.Folder(folder)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.Trim(filepath.Base(dir), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
		if filepath.Dir(dir) != filepath.Join(home.Dir, "dev") || len(filepath.Base(dir)) > 35 || plain != "" || names[dir] {
			t.Errorf("%s: got %s, want another short plain name below %s", name, dir, home.Dir)
		}
		names[dir] = true
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(folder, link); err != nil {
			t.Fatal(err)
		}
		if got, err := home.Folder(link); got != dir || err != nil {
			t.Errorf("by a link: got %s, %v, want %s", got, err, dir)
		}
	}
}

func TestOwnStateFolderIsClaimedAndVerified(t *testing.T) {
	t.Parallel()
	home, dir := userHome(t), filepath.Join(t.TempDir(), "more", "state")
	if _, err := home.Verify(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: got %v, want no folder", err)
	}
	for range 2 {
		if got, err := home.Claim(dir); got != dir || err != nil {
			t.Fatalf("got %s, %v, want %s", got, err, dir)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := home.Verify(dir); got != dir || err != nil {
		t.Errorf("after: got %s, %v, want %s", got, err, dir)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v, want mode 0700", info.Mode(), err)
	}
	// Another user, and this user on another machine, have another key.
	if _, err := userHome(t).Verify(dir); !errors.Is(err, devstack.ErrForeign) {
		t.Errorf("with another key: got %v, want %v", err, devstack.ErrForeign)
	}
}

// A repository, an archive or another user must not choose the files that the servers of a stack obey.
func TestForeignStateFolderIsRefused(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, plant := range map[string]func(t *testing.T, home devstack.Home, dir string) string{
		"files": func(t *testing.T, _ devstack.Home, dir string) string {
			write(t, dir+"/postgres/postgresql.auto.conf", "listen_addresses = '*'")
			return dir
		},
		"proof of nothing": func(t *testing.T, _ devstack.Home, dir string) string {
			write(t, dir+"/made-here", strings.Repeat("0", 64))
			return dir
		},
		"copy of an own folder": func(t *testing.T, home devstack.Home, dir string) string {
			own := filepath.Join(t.TempDir(), "own")
			if _, err := home.Claim(own); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(own)); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		"link to an own folder": func(t *testing.T, home devstack.Home, dir string) string {
			own := filepath.Join(t.TempDir(), "own")
			if _, err := home.Claim(own); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(own, dir); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		"link to an empty folder": func(t *testing.T, _ devstack.Home, dir string) string {
			if err := os.Symlink(t.TempDir(), dir); err != nil {
				t.Fatal(err)
			}
			return dir
		},
		"folder that others can replace": func(t *testing.T, _ devstack.Home, dir string) string {
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
				t.Fatal(err)
			}
			return dir + "/state"
		},
		"file": func(t *testing.T, _ devstack.Home, dir string) string {
			write(t, dir, "text")
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := userHome(t)
			dir := plant(t, home, filepath.Join(t.TempDir(), ".brevet"))
			before := listing(t, filepath.Dir(dir))
			for what, do := range map[string]func(string) (string, error){"claim": home.Claim, "verify": home.Verify} {
				if _, err := do(dir); !errors.Is(err, devstack.ErrForeign) && !errors.Is(err, devstack.ErrUntrusted) {
					t.Errorf("%s: got %v, want it refused", what, err)
				}
			}
			if after := listing(t, filepath.Dir(dir)); name != "folder that others can replace" && after != before {
				t.Errorf("got\n%s\nwant it unchanged:\n%s", after, before)
			}
		})
	}
}

// listing describes all files below a folder.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// A link in a state folder must not make a stack write to a file elsewhere, change its mode, or delete it.
func TestLinkInAStateFolderIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"lock", "postgres", "postgres.log", "postgres.port", "postgres.password", "vault", "vault.log", "vault/config.hcl", "vault/pid",
		"run", "run/.s.PGSQL.1", "approle/role_id", "catalog/github.yaml", "people/alice.token", "svid",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, elsewhere := t.TempDir(), t.TempDir()
			victim := filepath.Join(elsewhere, "precious")
			if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
				t.Fatal(err)
			}
			before := listing(t, elsewhere)
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, target := range []string{victim, elsewhere} {
				path := filepath.Join(dir, name)
				if err := os.Symlink(target, path); err != nil {
					t.Fatal(err)
				}
				if _, err := devstack.Start(t.Context(), devstack.Config{Dir: dir}); !errors.Is(err, devstack.ErrUntrusted) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want it refused because of %s", err, path)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if after := listing(t, elsewhere); after != before {
				t.Errorf("got\n%s\nwant it unchanged:\n%s", after, before)
			}
		})
	}
}

// Whatever the files of a cluster say, its server listens on loopback and runs no command.
func TestFilesOfAClusterOpenNoPort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop(t, start(t, dir))
	mark := filepath.Join(t.TempDir(), "mark")
	file, err := os.OpenFile(filepath.Join(dir, "postgres", "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString("listen_addresses = '*'\narchive_mode = on\narchive_command = 'touch " + mark + "'\n" +
		"shared_preload_libraries = 'none'\nsession_preload_libraries = 'none'\nlocal_preload_libraries = 'none'\n")
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	pg := start(t, dir).Postgres
	for setting, want := range map[string]string{
		"listen_addresses": "127.0.0.1", "archive_mode": "off",
		"shared_preload_libraries": "", "session_preload_libraries": "", "local_preload_libraries": "",
	} {
		if got := query(t, pg.AdminURL(), `SELECT current_setting('`+setting+`')`); got != want {
			t.Errorf("%s: got %q, want %q", setting, got, want)
		}
	}
	query(t, pg.AdminURL(), `SELECT pg_switch_wal()::text`)
	if _, err := os.Stat(mark); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the server ran a command of its files")
	}
}
