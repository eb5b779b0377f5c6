//! The self-test, and the trial run of a model's shape.
use super::*;
use serde_json::Value as Json;

#[test]
fn a_quick_selftest_of_the_cpu_is_sound_and_its_json_holds_everything() {
    if crate::left_out::unless_all("half a minute of two cores") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("selftest.json");
    let done = palimpsest(["selftest", "--quick", "--device", "cpu", "--json", file.to_str().unwrap()]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    for part in
        ["AVX", "GREEDY", "32 of 32", "minimax_m2", "delta net, Qwen3.5-9B", "Sound.", "It can be used."]
    {
        let vectors = part == "AVX" && !cfg!(target_arch = "x86_64");
        assert!(vectors || done.out.contains(part), "{part}: {}", done.out);
    }
    assert!(!done.out.contains("WRONG") && !done.out.contains("ERROR"), "{}", done.out);
    assert!(done.err.contains("selftest 1/"), "progress: {}", done.err);

    let json: Json = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&json["selftest"], &json["quick"]), (&Json::from(1), &Json::from(true)));
    assert_eq!(json["finished"], true);
    assert!(!partial(&file).exists(), "a test that ended leaves nothing beside its file");
    assert!(["product", "copy"].iter().all(|rate| json["ceilings"][rate].as_f64().unwrap() > 0.0), "{json}");
    assert!(done.out.contains("OF PRODUCT") && done.out.contains("OF COPY"), "{}", done.out);
    assert_eq!(json["verdict"]["sound"], true);
    assert_eq!(json["host"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["devices"][0]["device"], "cpu");
    let parity = json["parity"].as_array().unwrap();
    let mut architectures: Vec<&str> =
        parity.iter().map(|row| row["architecture"].as_str().unwrap()).collect();
    for dtype in ["f32", "bf16", "f16"] {
        assert_eq!(parity.iter().filter(|row| row["dtype"] == dtype).count(), 9, "{dtype}");
    }
    architectures.sort_unstable();
    architectures.dedup();
    assert_eq!(architectures.len(), 9, "{architectures:?}");
    for row in parity {
        assert!(row["sound"] == true && row["error"].is_null(), "{row}");
        for compared in row["compared"].as_array().unwrap() {
            assert!(compared["found"].is_number() && compared["allowed"].is_number(), "{row}");
        }
    }
    let layers = json["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 5);
    for layer in layers {
        assert_eq!(layer["sound"], true, "{layer}");
        let trial = &layer["trials"][0];
        assert_eq!((&trial["tokens"], &trial["generated"]), (&Json::from(256), &Json::from(8)));
        for figure in ["prefill_seconds", "recording_seconds", "token_seconds"] {
            assert!(trial[figure].as_f64().unwrap() > 0.0, "{figure}: {layer}");
        }
        assert!(trial["memory"][0]["planned"].as_u64().unwrap() > 0, "{layer}");
    }
    assert!(layers[0]["trials"][0].get("kernel").is_none(), "there is no choice of kernels on the CPU");
}

#[test]
fn a_selftest_of_a_device_that_is_not_here_or_into_a_folder_that_is_not_there_is_refused() {
    let missing = std::path::Path::new("no/such/folder/selftest.json");
    let cases: [(&[&str], &str); 4] = [
        (&["--device", "tpu"], "`tpu` is no device"),
        (&["--device", "cpu,cuda:0"], "mixes cpu with cuda:0"),
        (&["--device", "cuda:7"], "device `cuda:7` cannot be used"),
        (&["--json", missing.to_str().unwrap()], "no/such/folder"),
    ];
    for (args, part) in cases {
        let refused = palimpsest([&["selftest", "--quick"], args].concat());
        assert_eq!(refused.code, Some(1), "{args:?}");
        assert!(refused.err.contains(part) && refused.out.is_empty(), "{args:?}: {}", refused.err);
    }
}

#[test]
#[cfg(unix)]
fn a_selftest_stopped_by_ctrl_c_says_so_and_writes_no_file() {
    let root = tempfile::tempdir().unwrap();
    let (said, file) = (root.path().join("said"), root.path().join("selftest.json"));
    let mut command = command(["selftest", "--json", file.to_str().unwrap()]);
    command.stderr(std::fs::File::create(&said).unwrap());
    let said = || std::fs::read_to_string(&said).unwrap();
    let stopped = resume::interrupt(command, || said().contains("selftest 1/"), resume::signal("-INT"));
    assert_eq!(stopped.code, Some(130), "{}", said());
    assert!(said().contains("stopped") && stopped.out.is_empty(), "{}", said());
    assert!(!file.exists());
    // The parts done before are there, marked as not finished.
    let json: Json = serde_json::from_slice(&std::fs::read(partial(&file)).unwrap()).unwrap();
    assert_eq!((&json["finished"], &json["verdict"]), (&Json::from(false), &Json::Null));
    let dtypes: Vec<&Json> = json["parity"].as_array().unwrap().iter().map(|row| &row["dtype"]).collect();
    assert_eq!(dtypes[..3], ["f32", "bf16", "f16"]);
    assert!(dtypes.len().is_multiple_of(3), "whole models: {json}");
}

fn partial(file: &std::path::Path) -> std::path::PathBuf {
    file.with_extension("json.partial")
}

#[test]
fn a_trial_of_a_model_s_shape_says_what_it_takes_and_how_fast_it_is() {
    let home = tempfile::tempdir().unwrap();
    let config = model().join("config.json");
    let trial = |args: &[&str]| {
        let mut command = command([&["model", "try"], args].concat());
        command.env("PALIMPSEST_HOME", home.path());
        ended(command)
    };
    let config = config.to_str().unwrap();
    for weights in [&[][..], &["--zeros"]] {
        let settings = ["--context", "300", "--generate", "5", "--chunk", "64", "--rows", "20", "--json"];
        let done = trial(&[&[config], &settings[..], weights].concat());
        assert_eq!(done.code, Some(0), "{}", done.err);
        let json: Json = serde_json::from_str(&done.out).unwrap();
        let trial = &json["trial"];
        assert_eq!((&trial["tokens"], &trial["generated"]), (&Json::from(295), &Json::from(5)));
        assert!(trial["prefill"]["products"].as_f64().unwrap() > 1e6, "{json}");
        assert!(trial["memory"][0]["planned"].as_u64().unwrap() > 0, "{json}");
        #[cfg(target_os = "linux")]
        assert!(trial["memory"][0]["peak"]["bytes"].as_u64().unwrap() > 0, "{json}");
    }
    let split = trial(&[config, "--context", "200", "--device", "cpu,cpu", "--dtype", "bf16"]);
    assert_eq!(split.code, Some(0), "{}", split.err);
    for part in ["in bf16", "PLANNED", "prefill of 184 tokens", "a generated token", "recording"] {
        assert!(split.out.contains(part), "{part}: {}", split.out);
    }
    let refusals: [(&[&str], &str); 4] = [
        (&["minimax-m2.5", "--context", "100000"], "free on cpu"),
        (&[config, "--context", "16", "--generate", "16"], "leaves no token"),
        (&["no-such-model"], "no-such-model"),
        (&[config, "--device", "cuda:0"], "device `cuda:0` cannot be used"),
    ];
    for (args, part) in refusals {
        let refused = trial(args);
        assert_eq!(refused.code, Some(1), "{args:?}");
        assert!(refused.err.contains(part), "{args:?}: {}", refused.err);
    }
}
