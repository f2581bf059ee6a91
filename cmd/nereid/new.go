package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/scaffold"
	"github.com/nereid-serving/nereid/python"
)

// newFiles writes files to begin with.
type newFiles struct {
	Python  newPython  `cmd:"" help:"Write a Python model with its configuration and a test."`
	Package newPackage `cmd:"" help:"Write the Python package by which models are tested without a server."`
}

// newPython writes a Python model.
type newPython struct {
	Name       string `arg:"" help:"The model's name."`
	Repository string `name:"model-repository" default:"models" placeholder:"DIR" help:"The repository to write it into; the directory is made."`
}

// Help shows what is made.
func (newPython) Help() string {
	return `NAME/1/model.py, NAME/config.pbtxt, NAME/test_model.py and NAME/README.md are written. A directory that is there already is not touched.

Examples:

    nereid new python upper
    nereid new python upper --model-repository=/srv/models`
}

// Run writes the files and prints their names, and what to do next.
func (n *newPython) Run(stdout io.Writer) error {
	written, err := scaffold.Python(n.Repository, n.Name)
	if err != nil {
		return err
	}
	for _, file := range written {
		if _, err := fmt.Fprintln(stdout, file); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "\nServe it with  nereid serve --model-repository=%s;  test it as %s says.\n", n.Repository, filepath.Join(n.Repository, n.Name, "README.md"))
	return err
}

// newPackage writes the package of Python models.
type newPackage struct {
	Directory string `arg:"" help:"Where to write it: files of the package that are there are written over."`
}

// Help says how to use it.
func (newPackage) Help() string {
	return `The package has nereid.testing, which runs a model in a test, and triton_python_backend_utils, which models import. It needs numpy. A server has its own.

Examples:

    nereid new package ~/.nereid
    PYTHONPATH=~/.nereid python3 -m unittest discover -s models/upper`
}

// Run writes the files.
func (n *newPackage) Run() error { return scaffold.Package(python.Files(), n.Directory) }
