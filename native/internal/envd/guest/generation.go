package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// generationName is the file that tells programs which start of the sandbox's state they are in.
const generationName = "generation"

// generationDirs are where that file may lie: the first that can be written has it. The second is for images whose /run
// cannot be.
var generationDirs = []string{"/run/aenv", "/var/lib/aenv"}

// Generation tells one start of a sandbox's state from every other.
type Generation struct {
	// Number counts the starts of one sandbox, from 1; it is 0 in the machine that a template is captured from.
	Number int
	// ID is another at every start, and cannot be foretold. Empty: there is nothing new to tell.
	ID string
}

// writeGeneration puts the marker in the place of the one before, in one step.
func (g Guest) writeGeneration(sandboxID string, generation Generation) error {
	if generation.ID == "" {
		return nil
	}
	text := fmt.Sprintf("AENV_SANDBOX_ID=%s\nAENV_GENERATION=%d\nAENV_GENERATION_ID=%s\n", sandboxID, generation.Number, generation.ID)
	var problems []error
	for _, name := range generationDirs {
		path := filepath.Join(g.path(name), generationName)
		// The folder is there, but for the first time.
		err := replaceFile(path, text)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = replaceFile(path, text)
			}
		}
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
