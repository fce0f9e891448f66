use super::*;

fn layout(text: &str, input: Shape, classes: usize) -> Layout {
    Layout::new(&text.parse().unwrap(), input, classes).unwrap()
}

const IMAGE: Shape = Shape::Image {
    channels: 2,
    height: 6,
    width: 6,
};

/// Returns the names of the operations.
fn names(program: &Program) -> Vec<String> {
    names_of(&program.ops)
}

fn names_of(ops: &[Op]) -> Vec<String> {
    let name = |op: &Op| match op {
        Op::Conv(conv) => format!("conv relu={}", conv.relu),
        Op::Dense(dense) => format!("dense relu={}", dense.relu),
        Op::MaxPool(pool) => format!("maxpool {}", pool.window.0),
        Op::MeanPool(pool) => format!("meanpool {}", pool.window.0),
        Op::Activation(activation) => format!("{activation:?}"),
        Op::Norm(norm) => format!("norm {:?} relu={}", norm.sets, norm.relu),
        Op::Residual(block) => format!(
            "{:?} + {:?} relu={}",
            names_of(&block.body),
            names_of(&block.skip),
            block.relu
        ),
        Op::Dropout(dropout) => format!("dropout at {}", dropout.place),
        Op::ToRows(Planes { channels, plane }) => format!("rows of {channels}x{plane}"),
        Op::FromRows(Planes { channels, plane }) => format!("{channels}x{plane} of rows"),
    };
    ops.iter().map(name).collect()
}

#[test]
fn relu_is_fused_only_into_layers_that_can() {
    let text = "conv 2 3x3, relu, maxpool 2, relu, flatten, dense 3, relu, relu, dense 2";
    let program = Program::new(&layout(text, IMAGE, 2), ImageOrder::BySample);
    assert_eq!(
        names(&program),
        [
            "conv relu=true",
            "maxpool 2",
            "Relu",
            "dense relu=true",
            "dense relu=false"
        ]
    );
}

#[test]
fn images_that_lie_by_channel_are_turned_before_rows_are_read() {
    let program = |text, order| Program::new(&layout(text, IMAGE, 4), order);
    let text = "tanh, conv 3 3x3, avgpool 2, flatten, dropout 0.5, dense 4";
    let turned = program(text, ImageOrder::ByChannel);
    assert_eq!(turned.input, Planes { channels: 2, plane: 36 });
    assert_eq!(
        names(&turned),
        [
            "Tanh",
            "conv relu=false",
            "meanpool 2",
            "dropout at 3",
            "rows of 3x4",
            "dense relu=false"
        ]
    );
    // Dropout has the same key for every order of images: conversions are not counted.
    assert!(names(&program(text, ImageOrder::BySample)).contains(&"dropout at 3".into()));
    // The loss reads rows.
    let open_ended = program("conv 4 3x3, avgpool 4, flatten", ImageOrder::ByChannel);
    assert_eq!(names(&open_ended), ["conv relu=false", "meanpool 4", "rows of 4x1"]);
    // With one channel no conversion is needed; nor if the model reads the data as rows.
    let one_channel = program("conv 1 3x3, flatten, dense 4", ImageOrder::ByChannel);
    assert_eq!(names(&one_channel), ["conv relu=false", "dense relu=false"]);
    let dense = program("flatten, dense 4", ImageOrder::ByChannel);
    assert_eq!((dense.input, names(&dense).len()), (Planes::rows(72), 1));
}

#[test]
fn gradients_come_back_only_to_what_can_be_trained() {
    let program = Program::new(
        &layout("tanh, flatten, dense 5, dense 2", IMAGE, 2),
        ImageOrder::BySample,
    );
    assert_eq!(program.first_with_weights(), 1);
    let needed: Vec<InputGradient> = program
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Dense(dense) => Some(dense.input_gradient),
            _ => None,
        })
        .collect();
    assert_eq!(needed, [InputGradient::NotNeeded, InputGradient::Needed]);
}

#[test]
fn nothing_is_dropped_where_nothing_is_trained() {
    let layout = layout("flatten, dropout 0.1, dense 5, dropout 0.5, dense 2", IMAGE, 2);
    let program = Program::new(&layout, ImageOrder::BySample).for_evaluation();
    assert_eq!(names(&program), ["dense relu=false", "dense relu=false"]);
}

#[test]
fn sizes_follow_from_one_operation_to_the_next() {
    let text = "conv 3 3x3 stride 2 pad 1, tanh, maxpool 2, flatten, dense 5";
    for order in [ImageOrder::BySample, ImageOrder::ByChannel] {
        let program = Program::new(&layout(text, IMAGE, 5), order);
        let mut sizes = vec![72];
        for op in &program.ops {
            sizes.push(op.outputs(sizes[sizes.len() - 1]));
        }
        sizes.dedup();
        assert_eq!(sizes, [72, 27, 3, 5], "{order:?}");
    }
}

#[test]
fn blocks_fuse_relu_and_turn_to_rows_what_reads_rows() {
    let text = "residual [ conv 3 3x3 pad 1, batchnorm ], relu, residual [ dropout 0.5 ], flatten, residual [ dense 108 ], layernorm, relu, dense";
    let by_channel = Program::new(&layout(text, IMAGE, 2), ImageOrder::ByChannel);
    assert_eq!(
        names(&by_channel),
        [
            r#"["conv relu=false", "norm Channels relu=false"] + ["conv relu=false", "norm Channels relu=false"] relu=true"#,
            r#"["dropout at 5"] + [] relu=false"#,
            "rows of 3x36",
            r#"["dense relu=false"] + [] relu=false"#,
            "norm Samples relu=true",
            "dense relu=false",
        ]
    );
    let evaluated = by_channel.for_evaluation();
    assert_eq!(names(&evaluated)[1], "[] + [] relu=false");
    assert_eq!(evaluated.first_with_weights(), 0);
}

#[test]
fn what_passes_between_machines_is_rows_whatever_they_are_within() {
    let text = "conv 4 3x3, relu, conv 6 3x3, maxpool 2, dense 3";
    let draft = protocol::job::JobDraft {
        exchange: Some("layers:groups=3".into()),
        ..Default::default()
    };
    let job = draft.resolve().unwrap();
    let partition = Partition::new(layout(text, IMAGE, 3), job.exchange.pipelines().unwrap()).unwrap();
    let of = |number: usize, order| {
        let stage = partition.stage(number);
        let program = Program::of_layer_range(&partition, &stage, &stage.layer_ranges[0], order);
        assert_eq!(program.input.channels, 1);
        names(&program)
    };
    let by_channel = |number| of(number, ImageOrder::ByChannel);
    assert_eq!(by_channel(0), ["2x36 of rows", "conv relu=true", "rows of 4x16"]);
    assert_eq!(
        by_channel(1),
        ["4x16 of rows", "conv relu=false", "maxpool 2", "rows of 6x1"]
    );
    assert_eq!(by_channel(2), ["dense relu=false"]);
    assert_eq!(of(1, ImageOrder::BySample), ["conv relu=false", "maxpool 2"]);
}
