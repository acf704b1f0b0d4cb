//! `hotcell`: the daemon and the operator's command line.

fn main() -> std::process::ExitCode {
    hotcell::cli::main()
}
