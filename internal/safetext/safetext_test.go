package safetext_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/internal/safetext"
)

// H71 to H73, H76, H79: text from a sandbox is displayed on a terminal without any effect on it.
func TestText(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "résumé, 漢字 and 100 %", "résumé, 漢字 and 100 %"},
		{"colour", "\x1b[31mred", `\u001b[31mred`},
		{"link (OSC 8)", "\x1b]8;;https://evil\x07here", `\u001b]8;;https://evil\u0007here`},
		{"clipboard (OSC 52)", "\x1b]52;c;eA==\x1b\\", `\u001b]52;c;eA==\u001b\`},
		{"C1 control", "\u009b31m", `\u009b31m`},
		{"right to left", "abc\u202egpj", `abc\u202egpj`},
		{"isolates", "\u2066x\u2069", `\u2066x\u2069`},
		{"zero width", "a\u200bb\u200dc\ufeff", `a\u200bb\u200dc\ufeff`},
		{"tags", "a\U000e0041", `a\ue0041`},
		{"lines", "one\r\ntwo\u2028three", `one\u000d\u000atwo\u2028three`},
		{"tab", "a\tb", `a\u0009b`},
		{"variation selector", "a\ufe0f\U000e0101", `a\ufe0f\ue0101`},
		{"joiner and fillers", "\u034f\u115f\u3164\uffa0\u17b4", `\u034f\u115f\u3164\uffa0\u17b4`},
		{"blank Braille", "\u2800", `\u2800`},
		{"marks upon marks", "a\u0301\u0301\u0301\u0301\u0301", "a\u0301\u0301\u0301\u0301" + `\u0301`},
		{"broken UTF-8", "a\xffb", "a\ufffdb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := safetext.Text(tc.in); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestJSONMeansTheSame(t *testing.T) {
	const hostile = "é \x1b[31m \u009b \u202e \U000e0041 \x7f \ufe0f 漢 a\u0301\u0301\u0301\u0301\u0301"
	document, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	got := safetext.JSON(string(document))
	if safetext.Text(got) != got || !strings.Contains(got, "é") || !strings.Contains(got, "漢") {
		t.Errorf("got %q, want what is visible and escapes for the rest", got)
	}
	var back string
	if err := json.Unmarshal([]byte(got), &back); err != nil || back != hostile {
		t.Errorf("got %q back, %v", back, err)
	}
}

// For any input, the output is visible, escaping it again changes nothing, and everything visible in the input is kept.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "plain", "\x1b[2J", "a\u202eb", "\xff\xfe", "e\u0301\u0301\u0301\u0301\u0301\u0301", "\U000e0041"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := safetext.Text(text)
		if !utf8.ValidString(got) || safetext.Text(got) != got {
			t.Errorf("%q became %q, which is not inert", text, got)
		}
		for _, r := range got {
			if !safetext.Visible(r) {
				t.Errorf("%q became %q, in which %U does not show", text, got, r)
			}
		}
		if got, want := utf8.RuneCountInString(got), utf8.RuneCountInString(text); got < want {
			t.Errorf("%q has %d characters, and %d are shown", text, want, got)
		}
	})
}

func TestShorten(t *testing.T) {
	for _, tc := range []struct {
		in   string
		most int
		want string
	}{
		{"", 4, ""},
		{"four", 4, "four"},
		{"fiver", 4, "fiv…"},
		{"ééééé", 4, "ééé…"},
	} {
		if got := safetext.Shorten(tc.in, tc.most); got != tc.want {
			t.Errorf("Shorten(%q, %d): got %q, want %q", tc.in, tc.most, got, tc.want)
		}
	}
}

// Clip keeps the words of a message, and none that could be a secret.
func TestClipHidesLongWords(t *testing.T) {
	for in, want := range map[string]string{
		"permission denied":                          "permission denied",
		"bad token ghs_0123456789012345678901234567": "bad token [...]",
		"two\nlines\u202e and\x1b[31m red":           "two lines and [31m red",
		strings.Repeat("word ", 20):                  "word word word word word word word word ...",
		"":                                           "",
	} {
		if got := safetext.Clip(in, 40); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
